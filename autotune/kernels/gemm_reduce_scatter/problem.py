"""The problem: C = reduce_scatter(A @ B) (+ bias), the depth sharded over the ranks, C by rows."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.kernels.gemm.problem import RESIDUAL, WIRE, WIRES, SummedProblem
from autotune.problem import choice, flag, invariant, size

MOST_ROWS_AT_ONCE = 256
"""With more rows of A, each owner's fill tiles of their own."""


@dataclass(frozen=True, kw_only=True)
class GemmReduceScatter(SummedProblem):
    """C [m / world_size, n]: rows r * m / world_size … of the sum over ranks of A [m, k_local] @ B [k_local, n].

    Rounding: each rank's product, accumulated in fp32, is rounded once to the result's type; the parts are summed in
    fp32 in a fixed order, the bias [n], the same on all ranks, is added once, to the sum, and that is rounded once. A
    ``residual`` [m / world_size, n], each rank's rows, is added like the bias. (``bsp`` adds the bias in the first
    rank's product and rounds as the library's reduce-scatter does, and once more after the residual.) ``b_order`` kn:
    B is stored [k_local, n] row by row; nk: as the weight of a linear layer, [n, k_local].
    """

    workload = "gemm_reduce_scatter"
    computes = "C = reduce_scatter(A @ B)"
    free = ("m",)
    one_row = "m"

    m: int = size("rows of A; each rank gets m / world-size of C's")
    n: int = size("columns of B and C")
    k: int = size("depth of the whole product; each rank holds k / world-size")
    residual: bool = flag(RESIDUAL)
    wire: str = choice(WIRE, WIRES, "auto")
    invariant: bool = invariant()

    def check(self) -> None:
        """Raise InvalidProblem if the ranks do not divide a sharded dimension, or operands do not go together."""
        self.check_sharded("m", "k")
        self.check_operands(self.n, self.k_local)

    @property
    def rows(self) -> int:
        return self.m // self.world_size

    @property
    def sums_by_rank(self) -> bool:
        """True if a row is summed in the order of ranks, not from its owner on. Of two ranks either is the same sum,
        unless what is sent is rounded and the owner's own part is not.
        """
        return self.is_invariant and (self.world_size > 2 or self.wire == "fp8")

    @property
    def bytes_moved(self) -> int:
        """Bytes that one rank receives from its peers at least: their parts of its rows."""
        return (self.world_size - 1) * self.rows * self.n * self.wire_size
