"""The problem: total = all_reduce(X) + residual, normed = rms_norm(total) * weight."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.dtypes import SCALE_BLOCK
from autotune.errors import InvalidProblem
from autotune.kernels.gemm_all_reduce.problem import in_inboxes
from autotune.problem import Problem, choice, flag, invariant, number, size

WHOLE = 8
"""A row is a multiple of this many elements: of 16 bytes in 16 bits."""

WIDEST = 16384
"""Elements of a row, which one program holds in registers."""


QUANTISED = ("none", "row", "block")
QUANTISED_HELP = "the norm as fp8, the A of the next GEMM, with a scale for each row, or for each row and 128 columns"


@dataclass(frozen=True, kw_only=True)
class AllReduceNorm(Problem):
    """total [m, n] = sum over ranks of X [m, n] + residual [m, n]; normed = total / rms(total) * weight [n].

    The end of a row-parallel layer and the beginning of the next one, on every rank. rms is the root of a row's mean
    square + ``eps``. Residual and weight are the same on all ranks. Both results have the element type, and the norm
    is taken of the total as it is returned.

    ``quantised``: the norm is rounded to fp8 (e4m3), as the A of the next GEMM, with fp32 scales of its own for each
    ``row``, or for each row and 128 columns (``block``), a third result.
    """

    workload = "all_reduce_norm"
    computes = "all_reduce(X) + residual, then RMSNorm"
    free = ("m",)
    one_row = "m"

    m: int = size("rows: tokens")
    n: int = size("columns: the hidden size")
    eps: float = number("added to a row's mean square", 1e-6)
    in_place: bool = flag("the library's all-reduce may overwrite X; otherwise X is copied first")
    quantised: str = choice(QUANTISED_HELP, QUANTISED, "none")
    invariant: bool = invariant()

    def check(self) -> None:
        """Raise InvalidProblem if a program cannot hold a row."""
        if self.n % WHOLE or self.n > WIDEST:
            raise InvalidProblem(f"n={self.n}: must be a multiple of {WHOLE}, and {WIDEST} at most")
        if self.quantised == "block" and self.n % SCALE_BLOCK:
            raise InvalidProblem(f"n={self.n} with quantised=block: must be a multiple of {SCALE_BLOCK}")

    @property
    def scale_columns(self) -> int:
        """Scales of a row of the norm."""
        return {"none": 0, "row": 1, "block": self.n // SCALE_BLOCK}[self.quantised]

    @property
    def result_size(self) -> int:
        return self.element_size

    @property
    def flops(self) -> int:
        """Floating-point operations of one rank that sums, adds and norms all rows."""
        return self.m * self.n * (self.world_size + 4)

    @property
    def bytes_moved(self) -> int:
        """Bytes that one rank receives at least: its share of every peer's part, then every peer's share of the sum."""
        return 2 * self.m * self.n * self.element_size * (self.world_size - 1) // self.world_size

    @property
    def bytes_read(self) -> int:
        """Lower bound on the bytes that one rank reads from its memory: its part and the residual."""
        return 2 * self.m * self.n * self.element_size

    def inbox_bytes(self, mode: str, block_m: int, protocol: str) -> int:
        """Bytes of the inboxes that a mode needs on each rank, for blocks of ``block_m`` rows."""
        held = sum(in_inboxes(mode, math.ceil(self.m / block_m), self.world_size))
        return held * block_m * self.n * self.element_size * (2 if protocol == "ll" else 1)
