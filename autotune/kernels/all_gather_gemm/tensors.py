"""What a call works on: one rank's operands, and the scratch that the kernels of one config share across ranks."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Tensors:
    """One rank's operands.

    ``a`` is the shard, contiguous, on the symmetric heap for the modes that pull; ``c`` the output [m, n_local]; ``b``
    [k, n_local] in either storage order; ``bias`` [n_local] or None.
    """

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    bias: torch.Tensor | None = None


@dataclass(frozen=True)
class Scratch:
    """What the kernels of one config share across ranks: on the symmetric heap, counters zero at the start."""

    state: torch.Tensor
    """int32 [2]: the epoch, and how many programs have left."""
    status: torch.Tensor
    """int32 [1]: 1 once a wait gave up."""
    ready: torch.Tensor
    done: torch.Tensor
    arrivals: torch.Tensor
    """int32 [world_size, units]"""
    inbox: torch.Tensor
    """[slots * m, k]"""
    partials: torch.Tensor
    """fp32 [tiles * splits, block_m, block_n], this rank's alone, like the tickets; see ``join_splits``."""
    tickets: torch.Tensor
    """int32 [tiles]"""
