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
from autotune.kernels.moe.grouped_launch import GroupedOperands, gemm_apart, row_scales
from autotune.kernels.moe_dispatch.exchange import Scratch, exchange_scratch
from autotune.kernels.moe_dispatch.own import dispatch_launch
from autotune.kernels.moe_dispatch_gemm.library import multiply
from autotune.kernels.moe_dispatch_gemm.modes import CustomCollective, DispatchGemmTask, LaidOut
from autotune.kernels.moe_dispatch_gemm.problem import MoeDispatchGemm
from autotune.kernels.moe_dispatch_gemm.tensors import OF_GEMM, Tensors

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
        return LaidOutRows(
            **vars(exchange_scratch(problem, mode, shared)),
            rows=own((problem.capacity, problem.hidden), OPERAND_DTYPES[problem.dtype]),
            scale_rows=row_scales(problem, problem.capacity, own),
        )  # fmt: skip

    def dispatch(
        self, call: Call[MoeDispatchGemm, L, Tensors, LaidOutRows], product: torch.Tensor | None = None
    ) -> Launch:  # fmt: skip
        scratch = call.scratch
        given = {name: value for name, value in vars(call.tensors).items() if name not in (*OF_GEMM, "c")}
        laid_out = {**given, "rows": scratch.rows, "scale_rows": scratch.scale_rows}
        return dispatch_launch(call, laid_out, call.knobs.layout_warps, product)


def _operands(call: Call[MoeDispatchGemm, L, Tensors, LaidOutRows]) -> GroupedOperands:
    return GroupedOperands.of(call.problem, call.scratch.rows, call.scratch.scale_rows, call.tensors)


class OurGemmWay(_LaidOutWay[L]):
    def launches(self, call: Call[MoeDispatchGemm, L, Tensors, LaidOutRows]) -> list[Launch]:
        return [self.dispatch(call, call.tensors.c), gemm_apart(call.task, call.knobs, _operands(call), call.tensors.c)]

    def roundings(self, problem: MoeDispatchGemm) -> float:
        """An activation follows in fp32, of whose result the tolerance counts the rounding."""
        return 0.0 if problem.gated else 1.0


class CustomCollectiveWay(_LaidOutWay[CustomCollective]):
    def launches(self, call: Call[MoeDispatchGemm, CustomCollective, Tensors, LaidOutRows]) -> list[Launch]:
        """The dispatch, and the seal of the library's result."""
        return [self.dispatch(call), seal_launch(call.status, call.tensors.c)]

    def run(self, call: Call[MoeDispatchGemm, CustomCollective, Tensors, LaidOutRows], launches: list[Launch]) -> Run:
        dispatch, seal = launches
        operands = _operands(call)

        def run() -> None:
            dispatch.run()
            multiply(operands, call.tensors.c)
            seal.run()

        return run

    def roundings(self, problem: MoeDispatchGemm) -> float:
        return 1.0 + OF_A_LIBRARY
