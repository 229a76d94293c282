"""The library's grouped GEMM, then sums by token where the rows are, and a collective."""

from __future__ import annotations

from autotune.kernels.gemm.library import OF_A_LIBRARY, ring
from autotune.kernels.launching.contract import Call
from autotune.kernels.launching.tensors import Run
from autotune.kernels.launching.way import LibraryWay
from autotune.kernels.moe.routing import Plan
from autotune.kernels.moe_combine import library
from autotune.kernels.moe_gemm_combine.modes import Library
from autotune.kernels.moe_gemm_combine.problem import MoeGemmCombine
from autotune.kernels.moe_gemm_combine.tensors import Tensors, library_product


class BulkSynchronous(LibraryWay[MoeGemmCombine, Library, Tensors]):
    def eager(self, call: Call[MoeGemmCombine, Library, Tensors, None]) -> Run:
        problem, tensors, exchange = call.problem, call.tensors, call.knobs.exchange
        plan = Plan(tensors.offsets, tensors.pairs, tensors.row_gates)

        def run() -> None:
            rows = library_product(problem, tensors)
            library.combine(problem, rows, plan, tensors.ids, tensors.out, exchange, call.rank, call.group)

        return run

    def roundings(self, problem: MoeGemmCombine) -> float:
        return 1.0 + OF_A_LIBRARY + ring(problem.world_size)
