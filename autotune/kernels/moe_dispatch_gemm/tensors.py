"""Operands and results of dispatch + grouped GEMM."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from autotune.kernels.moe_dispatch.tensors import Dispatched

OF_GEMM = ("b", "scale_b", "bias")
"""Tensors that a dispatch alone does not take."""


@dataclass(frozen=True)
class Tensors(Dispatched):
    b: torch.Tensor
    """[local experts, hidden, columns], contiguous, or each expert's is the transpose of a contiguous matrix."""
    c: torch.Tensor
    """[capacity, width]."""
    scale_x: torch.Tensor | None = None
    """fp32 [tokens, 1] or [tokens, hidden / 128]: x is fp8 then, as B is."""
    scale_b: torch.Tensor | None = None
    """fp32 [local experts, 1, columns] or [local experts, hidden / 128, columns / 128], stored as B is."""
    bias: torch.Tensor | None = None
    """[local experts, columns], of the result's type."""
