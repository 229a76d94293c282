"""Operands and result of grouped GEMM + combine, as our GEMM and the library's take them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from autotune.kernels.moe.grouped_launch import GroupedOperands
from autotune.kernels.moe.library import follow, grouped_product
from autotune.kernels.moe_gemm_combine.problem import MoeGemmCombine

OF_GEMM = ("a", "b", "scale_a", "scale_b", "bias")
"""Tensors that a combine alone does not take."""


@dataclass(frozen=True)
class Tensors:
    """One rank's operands and result, all contiguous, but for B."""

    a: torch.Tensor
    """[capacity, width], by expert; with offsets, pairs and row_gates as ``moe.routing.Plan`` has them."""
    b: torch.Tensor
    """[local experts, width, hidden], contiguous, or each expert's is the transpose of a contiguous matrix."""
    offsets: torch.Tensor
    """int32 [local experts + 1]."""
    pairs: torch.Tensor
    """int32 [capacity]."""
    row_gates: torch.Tensor
    """fp32 [capacity]."""
    ids: torch.Tensor
    """int32 [tokens, top_k], of this rank's tokens."""
    out: torch.Tensor
    """[tokens, hidden]."""
    scale_a: torch.Tensor | None = None
    """fp32 [capacity, 1] or [capacity, width / 128]: A is fp8 then, as B is."""
    scale_b: torch.Tensor | None = None
    """fp32 [local experts, 1, hidden] or [local experts, width / 128, hidden / 128], stored as B is."""
    bias: torch.Tensor | None = None
    """[local experts, hidden], of the result's type."""


def library_product(problem: MoeGemmCombine, tensors: Tensors) -> torch.Tensor:
    """Products [capacity, hidden] by the library's grouped GEMM, with biases where there are some."""
    operands = GroupedOperands.of(problem, tensors.a, tensors.scale_a, tensors)
    rows = grouped_product(operands)
    if tensors.bias is not None:
        follow(rows, rows, operands)
    return rows
