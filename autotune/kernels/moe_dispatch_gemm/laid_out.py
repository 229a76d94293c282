"""Our dispatch alone, which lays rows out, then a GEMM, ours or the library's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch

from autotune.kernels.gemm.library import OF_A_LIBRARY
from autotune.kernels.launching.contract import Call
from autotune.kernels.launching.one_program import seal_launch
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.scratch import poison_inboxes
from autotune.kernels.launching.tensors import OPERAND_DTYPES, Allocate, Run
from autotune.kernels.launching.way import Way
from autotune.kernels.moe.grouped_launch import GroupedOperands
from autotune.kernels.moe.specialized import gemm_apart
from autotune.kernels.moe_dispatch.exchange import Scratch, Travel, exchange_scratch
from autotune.kernels.moe_dispatch.own import dispatch_launch
from autotune.kernels.moe_dispatch_gemm.library import multiply
from autotune.kernels.moe_dispatch_gemm.modes import CustomCollective, DispatchGemmTask, LaidOut
from autotune.kernels.moe_dispatch_gemm.problem import MoeDispatchGemm
from autotune.kernels.moe_dispatch_gemm.tensors import OF_GEMM, Tensors, scaling_of

L = TypeVar("L", bound=LaidOut)


@dataclass(frozen=True)
class LaidOutRows(Scratch):
    """What a dispatch has, and this rank's alone:"""

    rows: torch.Tensor
    """[capacity, hidden]: the GEMM's A."""
    scale_rows: torch.Tensor | None
    """fp32 [capacity, scales of a row], of fp8."""

    def poison(self) -> None:
        super().poison()
        poison_inboxes(self.rows, self.scale_rows)


class _LaidOutWay(Way[MoeDispatchGemm, L, Tensors, LaidOutRows]):
    def scratch(self, task: DispatchGemmTask, mode: L, shared: Allocate, own: Allocate) -> LaidOutRows:
        problem = task.problem
        scales = own((problem.capacity, problem.row_scales), torch.float32) if problem.scaled else None
        return LaidOutRows(
            **vars(exchange_scratch(problem, mode, _travel(mode), shared)),
            rows=own((problem.capacity, problem.hidden), OPERAND_DTYPES[problem.dtype]), scale_rows=scales,
        )  # fmt: skip

    def dispatch(
        self, call: Call[MoeDispatchGemm, L, Tensors, LaidOutRows], product: torch.Tensor | None = None
    ) -> Launch:  # fmt: skip
        mode, scratch = call.knobs, call.scratch
        given = {name: value for name, value in vars(call.tensors).items() if name not in (*OF_GEMM, "c")}
        laid_out = {**given, "rows": scratch.rows, "scale_rows": scratch.scale_rows}
        return dispatch_launch(call, mode, _travel(mode), laid_out, mode.layout_rows, mode.layout_warps, product)


def _travel(mode: LaidOut) -> Travel:
    words = mode.protocol == "ll"
    return Travel(ll=words, routing_ll=words)


class OurGemmWay(_LaidOutWay[L]):
    def launches(self, call: Call[MoeDispatchGemm, L, Tensors, LaidOutRows]) -> list[Launch]:
        problem, tensors, scratch = call.problem, call.tensors, call.scratch
        operands = GroupedOperands(
            scratch.rows, tensors.b, tensors.offsets, problem.capacity, scale_a=scratch.scale_rows,
            scale_b=tensors.scale_b, scales=problem.scales, bias=tensors.bias,
        )  # fmt: skip
        gemm = gemm_apart(
            call.task, call.knobs, operands, tensors.c, epilogue=problem.epilogue, halves=problem.halves
        )  # fmt: skip
        return [self.dispatch(call, tensors.c), gemm]

    def roundings(self, problem: MoeDispatchGemm) -> float:
        """An activation follows in fp32, of whose result the tolerance counts the rounding."""
        return 0.0 if problem.gated else 1.0


class CustomCollectiveWay(_LaidOutWay[CustomCollective]):
    def launches(self, call: Call[MoeDispatchGemm, CustomCollective, Tensors, LaidOutRows]) -> list[Launch]:
        """The dispatch, and the seal of the library's result."""
        return [self.dispatch(call), seal_launch(call.status, call.tensors.c)]

    def run(self, call: Call[MoeDispatchGemm, CustomCollective, Tensors, LaidOutRows], launches: list[Launch]) -> Run:
        dispatch, seal = launches
        problem, tensors, scratch = call.problem, call.tensors, call.scratch
        scaling = scaling_of(problem, tensors, scratch.scale_rows)

        def run() -> None:
            dispatch.run()
            multiply(problem, scratch.rows, tensors, tensors.offsets, tensors.c, scaling)
            seal.run()

        return run

    def roundings(self, problem: MoeDispatchGemm) -> float:
        return 1.0 + OF_A_LIBRARY
