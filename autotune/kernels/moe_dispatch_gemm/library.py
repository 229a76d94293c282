"""The library's dispatch, then its grouped GEMM, and what follows it in one kernel."""

from __future__ import annotations

import torch

from autotune.kernels.gemm.library import OF_A_LIBRARY
from autotune.kernels.launching.contract import Call
from autotune.kernels.launching.tensors import Run
from autotune.kernels.launching.way import LibraryWay
from autotune.kernels.moe.grouped_launch import GroupedOperands
from autotune.kernels.moe.library import follow, grouped_product
from autotune.kernels.moe_dispatch import library
from autotune.kernels.moe_dispatch_gemm.modes import Library
from autotune.kernels.moe_dispatch_gemm.problem import MoeDispatchGemm
from autotune.kernels.moe_dispatch_gemm.tensors import Tensors


class BulkSynchronous(LibraryWay[MoeDispatchGemm, Library, Tensors]):
    def eager(self, call: Call[MoeDispatchGemm, Library, Tensors, None]) -> Run:
        problem, tensors = call.problem, call.tensors

        def run() -> None:
            rows, of_rows = library.dispatched(call, tensors.scale_x)
            multiply(GroupedOperands.of(problem, rows, of_rows, tensors), tensors.c[: rows.shape[0]])

        return run

    def roundings(self, problem: MoeDispatchGemm) -> float:
        return 1.0 + OF_A_LIBRARY


def multiply(operands: GroupedOperands, c: torch.Tensor) -> None:
    """C [rows, width] by the library's grouped GEMM, then the activation of rows that exist, or their copy: torch's
    writes to no memory that it is given.
    """
    follow(grouped_product(operands), c, operands)
