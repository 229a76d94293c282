"""Operands and result of the combine."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Tensors:
    """One rank's operands and result, all contiguous."""

    rows: torch.Tensor
    """[capacity, hidden], by expert; with offsets, pairs and row_gates as ``moe.routing.Plan`` has them."""
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
