"""The dispatch in all its modes: the operands, and the way of each mode."""

from __future__ import annotations

import torch

from autotune.kernels.launching.tensors import OPERAND_DTYPES, Allocate
from autotune.kernels.launching.way import ModeKernels
from autotune.kernels.moe_dispatch.library import BulkSynchronous
from autotune.kernels.moe_dispatch.modes import MODES, Library, Pull, Push
from autotune.kernels.moe_dispatch.own import OwnWay
from autotune.kernels.moe_dispatch.problem import MoeDispatch
from autotune.kernels.moe_dispatch.tensors import ScaledTensors, Tensors


class MoeDispatchKernels(ModeKernels[MoeDispatch, Tensors]):
    modes = MODES
    ways = {Library: BulkSynchronous(), Push: OwnWay(), Pull: OwnWay()}
    tensors_type = Tensors
    results = ("rows", "offsets", "pairs", "row_gates")

    def tensors(self, problem: MoeDispatch, shared: Allocate, own: Allocate) -> Tensors:
        rows = own((problem.capacity, problem.hidden), OPERAND_DTYPES[problem.dtype])
        plain = Tensors(**Tensors.allocate(problem, own), rows=rows)
        if not problem.scaled:
            return plain
        return ScaledTensors(
            **vars(plain),
            scale_x=own((problem.tokens, problem.row_scales), torch.float32),
            scale_rows=own((problem.capacity, problem.row_scales), torch.float32),
        )

    def scratch_bytes(self, problem: MoeDispatch) -> int:
        return problem.exchange_bytes


KERNELS = MoeDispatchKernels()
SCALED = KERNELS.giving(ScaledTensors, *KERNELS.results, "scale_rows")
"""The dispatch of fp8 tokens, whose scales travel with them."""
