"""The library's grouped GEMM, then sums by token where the rows are, and a collective."""

from __future__ import annotations

from autotune.kernels.gemm.library import OF_A_LIBRARY, ring
from autotune.kernels.launching.contract import Call
from autotune.kernels.launching.tensors import Run
from autotune.kernels.launching.way import LibraryWay
from autotune.kernels.moe_combine.library import combine
from autotune.kernels.moe_gemm_combine.modes import Library
from autotune.kernels.moe_gemm_combine.problem import MoeGemmCombine
from autotune.kernels.moe_gemm_combine.tensors import Tensors, library_product


class BulkSynchronous(LibraryWay[MoeGemmCombine, Library, Tensors]):
    def eager(self, call: Call[MoeGemmCombine, Library, Tensors, None]) -> Run:
        return lambda: combine(call, library_product(call.problem, call.tensors))

    def roundings(self, problem: MoeGemmCombine) -> float:
        return 1.0 + OF_A_LIBRARY + ring(problem.world_size)
