"""Operands and results of the dispatch."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Tensors:
    """One rank's operands and results, all contiguous."""

    x: torch.Tensor
    """[tokens, hidden]."""
    ids: torch.Tensor
    """int32 [tokens, top_k]: -1 is none."""
    gates: torch.Tensor
    """fp32 [tokens, top_k]."""
    rows: torch.Tensor
    """[capacity, hidden]."""
    offsets: torch.Tensor
    """int32 [local experts + 1]; this and the others are ``moe.routing.Plan``."""
    pairs: torch.Tensor
    """int32 [capacity]."""
    row_gates: torch.Tensor
    """fp32 [capacity]."""


@dataclass(frozen=True)
class ScaledTensors(Tensors):
    scale_x: torch.Tensor
    """fp32 [tokens, 1] or [tokens, hidden / 128]."""
    scale_rows: torch.Tensor
    """fp32 [capacity, 1] or [capacity, hidden / 128]."""
