"""Memory of one config's kernels, kept between launches and shared across ranks."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Scratch:
    """Memory that one config's kernels share across ranks: on the symmetric heap, counters zero at the start."""

    epoch_counter: torch.Tensor
    """int64 [1]: see ``primitives/counters.py``."""
    ready: torch.Tensor
    done: torch.Tensor
    arrivals: torch.Tensor
    """int32 [k_chunks, world_size, units]"""
    inbox: torch.Tensor
    """[slots * m, k]"""
    scale_inbox: torch.Tensor | None
    """fp32 [slots * m, scales of a row], where scales travel."""
    words: torch.Tensor | None
    """Sentinel words [2 slots, world_size, elements of a shard], where A travels as such; empty between launches."""
    partials: torch.Tensor
    """fp32 [tiles * splits, block_m, block_n], this rank's alone, like the tickets; see ``join_splits``."""
    tickets: torch.Tensor
    """int32 [tiles]"""

    phase: torch.Tensor | None
    """int32 [1], this rank's alone, zero between launches: see ``end_phase``; None in the modes of the space."""

    def poison(self) -> None:
        """Fill with NaN everything that a right launch writes before it reads it."""
        self.inbox.fill_(float("nan"))
        if self.scale_inbox is not None:
            self.scale_inbox.fill_(float("nan"))
