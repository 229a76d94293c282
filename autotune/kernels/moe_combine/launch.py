"""The combine in all its modes: the operands, and the way of each mode."""

from __future__ import annotations

import torch

from autotune.kernels.launching.tensors import OPERAND_DTYPES, TORCH_DTYPES, Allocate
from autotune.kernels.launching.way import ModeKernels
from autotune.kernels.moe_combine.library import BulkSynchronous
from autotune.kernels.moe_combine.modes import MODES, Library, OneShot, Pull, Push
from autotune.kernels.moe_combine.own import OwnWay, scratch_bytes
from autotune.kernels.moe_combine.problem import MoeCombine
from autotune.kernels.moe_combine.tensors import Tensors


class MoeCombineKernels(ModeKernels[MoeCombine, Tensors]):
    modes = MODES
    ways = {Library: BulkSynchronous(), Push: OwnWay(), Pull: OwnWay(), OneShot: OwnWay()}
    tensors_type = Tensors

    def tensors(self, problem: MoeCombine, shared: Allocate, own: Allocate) -> Tensors:
        ints, dtype = torch.int32, OPERAND_DTYPES[problem.dtype]
        return Tensors(
            rows=own((problem.capacity, problem.hidden), dtype),
            offsets=own((problem.local_experts + 1,), ints),
            pairs=own((problem.capacity,), ints),
            row_gates=own((problem.capacity,), torch.float32),
            ids=own((problem.tokens, problem.top_k), ints),
            out=own((problem.tokens, problem.hidden), TORCH_DTYPES[problem.dtype]),
        )

    def scratch_bytes(self, problem: MoeCombine) -> int:
        return scratch_bytes(problem)


KERNELS = MoeCombineKernels()
