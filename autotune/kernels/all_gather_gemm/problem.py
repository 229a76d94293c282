"""The problem: C = all_gather(A) @ B (+ bias), A sharded by rows or along K, B by columns."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.problem import Problem, choice, flag, size

LAYOUTS = ("rows", "k")
B_ORDERS = ("kn", "nk")


@dataclass(frozen=True, kw_only=True)
class AllGatherGemm(Problem):
    """C [m, n / world_size] = all_gather(A) [m, k] @ B [k, n / world_size] (+ bias [n / world_size]) on every rank.

    ``layout`` rows: each rank holds A [m / world_size, k] (sequence parallel). k: A [m, k / world_size].
    ``b_order`` kn: B is stored [k, n_local] row by row; nk: as the weight of a linear layer, [n_local, k].
    """

    workload = "all_gather_gemm"
    free = ("m",)

    m: int = size("rows of the gathered A and of C")
    n: int = size("columns of the whole B; each rank holds n / world-size")
    k: int = size("columns of the gathered A, rows of B")
    layout: str = choice("sharding of A: by rows, or along K", LAYOUTS, "rows")
    b_order: str = choice("storage of B: row by row (kn), or transposed (nk)", B_ORDERS, "kn")
    bias: bool = flag("add a bias of n / world-size elements")
    in_place: bool = flag("A's shard lies in the tensor of all_gather_shard, where peers read it without a copy")

    def check(self) -> None:
        """Raise InvalidProblem if the sharding does not divide a dimension."""
        self.check_sharded("n", "m" if self.layout == "rows" else "k", note=f" (layout {self.layout})")

    @property
    def rows_layout(self) -> bool:
        return self.layout == "rows"

    @property
    def n_local(self) -> int:
        return self.n // self.world_size

    @property
    def shard(self) -> tuple[int, int]:
        """Shape of one rank's part of A."""
        if self.rows_layout:
            return self.m // self.world_size, self.k
        return self.m, self.k // self.world_size

    @property
    def gemm(self) -> tuple[int, int, int]:
        """Rows, columns and depth of one rank's GEMM."""
        return self.m, self.n_local, self.k

    @property
    def flops(self) -> int:
        """Floating-point operations of one rank."""
        return 2 * self.m * self.n_local * self.k

    @property
    def bytes_moved(self) -> int:
        """Bytes that one rank receives from its peers."""
        return self.m * self.k * self.element_size * (self.world_size - 1) // self.world_size

    @property
    def bytes_read(self) -> int:
        """Lower bound on the bytes that one rank reads from its memory: the gathered A and its B."""
        return (self.m * self.k + self.k * self.n_local) * self.element_size
