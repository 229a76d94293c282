"""The library's dispatch, then its grouped GEMM, and what follows it in one kernel."""

from __future__ import annotations

import torch

from autotune.kernels.gemm.library import OF_A_LIBRARY
from autotune.kernels.launching.contract import Call
from autotune.kernels.launching.tensors import Run
from autotune.kernels.launching.way import LibraryWay
from autotune.kernels.moe.library import Scaling, follow, grouped_product
from autotune.kernels.moe_dispatch import library
from autotune.kernels.moe_dispatch_gemm.modes import Library
from autotune.kernels.moe_dispatch_gemm.problem import MoeDispatchGemm
from autotune.kernels.moe_dispatch_gemm.tensors import Tensors, scaling_of


class BulkSynchronous(LibraryWay[MoeDispatchGemm, Library, Tensors]):
    def eager(self, call: Call[MoeDispatchGemm, Library, Tensors, None]) -> Run:
        problem, tensors = call.problem, call.tensors

        def run() -> None:
            rows, of_rows, plan = library.dispatched(call, tensors.scale_x)
            scaling = scaling_of(problem, tensors, of_rows)
            multiply(problem, rows, tensors, plan.offsets, tensors.c[: rows.shape[0]], scaling)

        return run

    def roundings(self, problem: MoeDispatchGemm) -> float:
        return 1.0 + OF_A_LIBRARY


def multiply(
    problem: MoeDispatchGemm, rows: torch.Tensor, tensors: Tensors, offsets: torch.Tensor, c: torch.Tensor,
    scaling: Scaling | None,
) -> None:  # fmt: skip
    """C [rows, width] by the library's grouped GEMM of these rows, and what follows it: of rows that exist."""
    product = grouped_product(rows, tensors.b, offsets, scaling)
    if not problem.gated and tensors.bias is None:
        c.copy_(product)
    else:
        follow(product, c, offsets, tensors.bias, problem.epilogue, halves=problem.halves)
