"""Memory of one config's kernels, kept between launches and shared across ranks."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Scratch:
    """Memory of one config besides the operands. The first six tensors lie on the symmetric heap; counters begin at
    zero.
    """

    epoch_counter: torch.Tensor
    """int64 [1]: see ``primitives/counters.py``."""
    ready: torch.Tensor
    """int32 [world_size], library's GEMMs: ranks whose inbox may be written to, whose product may be read."""
    done: torch.Tensor
    """int32 [world_size], library's GEMMs: ranks whose copies have been made, who have read our product."""
    arrivals: torch.Tensor
    """int32 [world_size, units]: launches in which a rank's unit of our rows was there."""
    inbox: torch.Tensor
    """Parts on their way, in the element type. Tiles: [2 slots, world_size, tiles, block_m, block_n], the second index
    being the source where parts are pushed, the owner where they are pulled. ``copy_engine``: [world_size, rows, n]."""
    inbox_scales: torch.Tensor | None
    """fp32 [2 * world_size * tiles, block_m]: scales of the rows of tiles in an inbox of fp8; None otherwise."""
    sent: torch.Tensor
    """int32 [world_size, units], this rank's alone: finished tiles of each peer's units, zero between launches."""
    product: torch.Tensor
    """[m, n], library's GEMMs: this rank's part of every row. ``own_collective``: on the heap, else ours alone."""
    partials: torch.Tensor
    """fp32 [tiles * splits, block_m, block_n], this rank's alone, like the tickets; see ``join_splits``."""
    tickets: torch.Tensor
    """int32 [tiles]"""

    phase: torch.Tensor | None
    """int32 [1], this rank's alone, zero between launches: see ``end_phase``; None in the modes of the space."""

    def poison(self) -> None:
        """Fill with NaN what a right launch writes before it reads it."""
        self.inbox.fill_(float("nan"))
        if self.inbox_scales is not None:
            self.inbox_scales.fill_(float("nan"))
        self.product.fill_(float("nan"))
