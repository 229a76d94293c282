"""The dispatch in all its modes: the operands, and the way of each mode."""

from __future__ import annotations

import torch

from autotune.kernels.launching.tensors import OPERAND_DTYPES, Allocate
from autotune.kernels.launching.way import ModeKernels
from autotune.kernels.moe_dispatch.library import BulkSynchronous
from autotune.kernels.moe_dispatch.modes import MODES, Library, Pull, Push
from autotune.kernels.moe_dispatch.own import PullWay, PushWay
from autotune.kernels.moe_dispatch.problem import MoeDispatch
from autotune.kernels.moe_dispatch.tensors import ScaledTensors, Tensors


class MoeDispatchKernels(ModeKernels[MoeDispatch, Tensors]):
    modes = MODES
    ways = {Library: BulkSynchronous(), Push: PushWay(), Pull: PullWay()}
    tensors_type = Tensors
    results = ("rows", "offsets", "pairs", "row_gates")

    def tensors(self, problem: MoeDispatch, shared: Allocate, own: Allocate) -> Tensors:
        dtype, ints, chosen = OPERAND_DTYPES[problem.dtype], torch.int32, (problem.tokens, problem.top_k)
        plain = Tensors(
            x=own((problem.tokens, problem.hidden), dtype),
            ids=own(chosen, ints),
            gates=own(chosen, torch.float32),
            rows=own((problem.capacity, problem.hidden), dtype),
            offsets=own((problem.local_experts + 1,), ints),
            pairs=own((problem.capacity,), ints),
            row_gates=own((problem.capacity,), torch.float32),
        )
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
"""Of fp8 tokens, whose scales travel with them."""
