"""The problem: rows by expert times their experts' B, and then back to their tokens' ranks, summed by gates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from autotune.errors import InvalidProblem
from autotune.kernels.moe.problem import WHOLE, GroupedProblem
from autotune.kernels.moe_combine.problem import CombinedProblem
from autotune.problem import choice, flag, size


@dataclass(frozen=True, kw_only=True)
class MoeGemmCombine(GroupedProblem, CombinedProblem):
    """out [tokens, hidden] = for each token of this rank the sum over its experts of gate * (row of A @ expert's B).

    A [capacity, width] lies on the experts' ranks, by expert, as the plan of a dispatch says (docs/kernels/moe.md), and
    so does each rank's B [local experts, width, hidden]; with ``bias`` each product is row of A @ expert's B + its bias
    [hidden]. ``deterministic``: the same inputs give the same bits in every
    call.
    """

    workload = "moe_gemm_combine"
    computes = "the experts' GEMMs, then their rows summed by token"

    width: int = size("columns of A, rows of each expert's B")
    b_order: str = choice("storage of each expert's B: row by row (kn), or transposed (nk)", ("kn", "nk"), "nk")
    bias: bool = flag("each expert adds a bias to its products, before they are summed")

    epilogue: ClassVar[str] = "none"
    gated: ClassVar[bool] = False
    halves: ClassVar[bool] = False

    def check(self) -> None:
        """Raise InvalidProblem also if the depth does not fit the library's GEMM."""
        super().check()
        if self.width % WHOLE:
            raise InvalidProblem(f"width={self.width}: must be a multiple of {WHOLE}")
        self.check_operands(self.hidden, self.width)

    @property
    def gemm(self) -> tuple[int, int, int]:
        """Rows of one expert at most, columns and depth."""
        return self.world_size * self.tokens, self.hidden, self.width
