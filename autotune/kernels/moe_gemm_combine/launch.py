"""Grouped GEMM + combine in all its modes: the operands, and the way of each mode."""

from __future__ import annotations

import torch

from autotune.kernels.launching.tensors import OPERAND_DTYPES, TORCH_DTYPES, Allocate
from autotune.kernels.launching.way import ModeKernels
from autotune.kernels.moe.grouped_launch import expert_tensors, row_scales
from autotune.kernels.moe_combine.own import scratch_bytes
from autotune.kernels.moe_gemm_combine.apart import CustomCollectiveWay, OurGemmWay
from autotune.kernels.moe_gemm_combine.fused import FusedWay
from autotune.kernels.moe_gemm_combine.library import BulkSynchronous
from autotune.kernels.moe_gemm_combine.modes import (
    MODES,
    CustomCollective,
    Library,
    OneShot,
    Pull,
    Push,
    Unfused,
    WarpSpecialized,
)
from autotune.kernels.moe_gemm_combine.problem import MoeGemmCombine
from autotune.kernels.moe_gemm_combine.tensors import Tensors

MOST_GROUPS = 8


class MoeGemmCombineKernels(ModeKernels[MoeGemmCombine, Tensors]):
    modes = MODES
    ways = {
        Library: BulkSynchronous(), CustomCollective: CustomCollectiveWay(), Unfused: OurGemmWay(),
        WarpSpecialized: OurGemmWay(), Push: FusedWay(), Pull: FusedWay(), OneShot: FusedWay(),
    }  # fmt: skip
    tensors_type = Tensors

    def tensors(self, problem: MoeGemmCombine, shared: Allocate, own: Allocate) -> Tensors:
        ints, dtype = torch.int32, OPERAND_DTYPES[problem.dtype]
        return Tensors(
            **expert_tensors(problem, own),
            a=own((problem.capacity, problem.width), dtype),
            scale_a=row_scales(problem, problem.capacity, own),
            offsets=own((problem.local_experts + 1,), ints),
            pairs=own((problem.capacity,), ints),
            row_gates=own((problem.capacity,), torch.float32),
            ids=own((problem.tokens, problem.top_k), ints),
            out=own((problem.tokens, problem.hidden), TORCH_DTYPES[problem.result_dtype]),
        )

    def scratch_bytes(self, problem: MoeGemmCombine) -> int:
        return scratch_bytes(problem, MOST_GROUPS)


KERNELS = MoeGemmCombineKernels()
