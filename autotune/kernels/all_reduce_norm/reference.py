"""The kernels' result, computed by torch."""

from __future__ import annotations

import torch


def norm_of(
    summed: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normed and total, in the type of ``summed`` [m, n], which is wider than theirs."""
    total = summed + residual
    scale = torch.rsqrt(total.square().mean(1, keepdim=True) + eps)
    return total * scale * weight.to(total.dtype), total
