"""Dispatch + grouped GEMM in all its modes: the operands, and the way of each mode."""

from __future__ import annotations

import torch

from autotune.kernels.launching.tensors import OPERAND_DTYPES, TORCH_DTYPES, Allocate
from autotune.kernels.launching.way import ModeKernels
from autotune.kernels.moe.grouped_launch import scale_tensors
from autotune.kernels.moe_dispatch_gemm.fused import FusedWay
from autotune.kernels.moe_dispatch_gemm.laid_out import CustomCollectiveWay, OurGemmWay
from autotune.kernels.moe_dispatch_gemm.library import BulkSynchronous
from autotune.kernels.moe_dispatch_gemm.modes import (
    MODES,
    CustomCollective,
    Library,
    Pull,
    Push,
    Unfused,
    WarpSpecialized,
)
from autotune.kernels.moe_dispatch_gemm.problem import MoeDispatchGemm
from autotune.kernels.moe_dispatch_gemm.tensors import Tensors


class MoeDispatchGemmKernels(ModeKernels[MoeDispatchGemm, Tensors]):
    modes = MODES
    ways = {
        Library: BulkSynchronous(), CustomCollective: CustomCollectiveWay(), Unfused: OurGemmWay(),
        WarpSpecialized: OurGemmWay(), Push: FusedWay(), Pull: FusedWay(),
    }  # fmt: skip
    tensors_type = Tensors
    results = ("c", "offsets", "pairs", "row_gates")

    def tensors(self, problem: MoeDispatchGemm, shared: Allocate, own: Allocate) -> Tensors:
        dtype, ints, chosen = OPERAND_DTYPES[problem.dtype], torch.int32, (problem.tokens, problem.top_k)
        local, depth, columns = problem.local_experts, problem.hidden, problem.columns
        transposed = problem.b_order == "nk"
        scale_x, scale_b = scale_tensors(problem, problem.tokens, own)
        b = own((local, columns, depth) if transposed else (local, depth, columns), dtype)
        return Tensors(
            x=own((problem.tokens, depth), dtype),
            ids=own(chosen, ints),
            gates=own(chosen, torch.float32),
            b=b.transpose(1, 2) if transposed else b,
            c=own((problem.capacity, problem.width), TORCH_DTYPES[problem.result_dtype]),
            offsets=own((local + 1,), ints),
            pairs=own((problem.capacity,), ints),
            row_gates=own((problem.capacity,), torch.float32),
            scale_x=scale_x,
            scale_b=scale_b,
            bias=own((local, columns), TORCH_DTYPES[problem.result_dtype]) if problem.bias else None,
        )

    def scratch_bytes(self, problem: MoeDispatchGemm) -> int:
        return problem.exchange_bytes


KERNELS = MoeDispatchGemmKernels()
