"""Dispatch + grouped GEMM in all its modes: the operands, and the way of each mode."""

from __future__ import annotations

from autotune.kernels.launching.tensors import TORCH_DTYPES, Allocate
from autotune.kernels.launching.way import ModeKernels
from autotune.kernels.moe.grouped_launch import expert_tensors, row_scales
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
        return Tensors(
            **Tensors.allocate(problem, own),
            **expert_tensors(problem, own),
            c=own((problem.capacity, problem.width), TORCH_DTYPES[problem.result_dtype]),
            scale_x=row_scales(problem, problem.tokens, own),
        )

    def scratch_bytes(self, problem: MoeDispatchGemm) -> int:
        return problem.exchange_bytes


KERNELS = MoeDispatchGemmKernels()
