"""Operands and results of dispatch + grouped GEMM."""

from __future__ import annotations

from dataclasses import dataclass

import torch

OF_GEMM = ("b", "scale_b", "bias")
"""Tensors that a dispatch alone does not take."""


@dataclass(frozen=True)
class Tensors:
    """One rank's operands and results, all contiguous, but for B."""

    x: torch.Tensor
    """[tokens, hidden]."""
    ids: torch.Tensor
    """int32 [tokens, top_k]: -1 is none."""
    gates: torch.Tensor
    """fp32 [tokens, top_k]."""
    b: torch.Tensor
    """[local experts, hidden, columns], contiguous, or each expert's is the transpose of a contiguous matrix."""
    c: torch.Tensor
    """[capacity, width]."""
    offsets: torch.Tensor
    """int32 [local experts + 1]; this and the others are ``moe.routing.Plan``."""
    pairs: torch.Tensor
    """int32 [capacity]."""
    row_gates: torch.Tensor
    """fp32 [capacity]."""
    scale_x: torch.Tensor | None = None
    """fp32 [tokens, 1] or [tokens, hidden / 128]: x is fp8 then, as B is."""
    scale_b: torch.Tensor | None = None
    """fp32 [local experts, 1, columns] or [local experts, hidden / 128, columns / 128], stored as B is."""
    bias: torch.Tensor | None = None
    """[local experts, columns], of the result's type."""
