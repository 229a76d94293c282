"""The problem: every token to the ranks of its experts, and into the first grouped GEMM there."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.errors import InvalidProblem
from autotune.kernels.gemm.problem import GATE_UP, GatedColumns
from autotune.kernels.moe.problem import GroupedProblem
from autotune.kernels.moe_dispatch.problem import DispatchedProblem
from autotune.problem import choice, flag, invariant, size

EPILOGUES = ("none", "swiglu", "swiglu_oai")


@dataclass(frozen=True, kw_only=True)
class MoeDispatchGemm(GatedColumns, GroupedProblem, DispatchedProblem):
    """C [capacity, width]: the tokens of all ranks' x [tokens, hidden] by this rank's experts, each times its expert's
    B [hidden, columns], and the plan that says which row is whose (docs/kernels/moe.md).

    With the epilogue ``swiglu`` B holds gate and up, 2 * width columns, and C is SiLU(gate) * up, in fp32 until it is
    rounded. ``swiglu_oai`` is that of gpt-oss' experts: min(gate, 7) * sigmoid(1.702 * min(gate, 7)) * (up + 1), with
    up between -7 and 7. With ``bias`` each expert adds a row [columns] to its products before that.
    """

    workload = "moe_dispatch_gemm"
    computes = "tokens to their experts, then the experts' GEMMs"

    width: int = size("columns of C; B has twice as many, gate and up, with an epilogue")
    b_order: str = choice("storage of each expert's B: row by row (kn), or transposed (nk)", ("kn", "nk"), "nk")
    epilogue: str = choice(
        "activation after the GEMM: SiLU of the gate, times up; that of gpt-oss; or none", EPILOGUES, "swiglu"
    )
    gate_up: str = choice(
        "gate and up in B: halves is [gate, up]; interleaved is gate, up, gate, up, …", GATE_UP, "halves"
    )
    bias: bool = flag("each expert adds a bias to its products, before the activation")
    invariant: bool = invariant()

    def check(self) -> None:
        """Raise InvalidProblem also if the columns do not fit the library's GEMM."""
        super().check()
        if self.width % 8:
            raise InvalidProblem(f"width={self.width}: must be a multiple of 8")
        self.check_operands(self.columns, self.hidden)
        self.check_gate()

    @property
    def columns(self) -> int:
        return self.width * (2 if self.gated else 1)

    @property
    def gemm(self) -> tuple[int, int, int]:
        """Rows of one expert at most, columns and depth."""
        return self.world_size * self.tokens, self.columns, self.hidden
