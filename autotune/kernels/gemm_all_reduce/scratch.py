"""Memory of one config's kernels, kept between launches and shared across ranks."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from autotune.kernels.launching.scratch import poison_inbox


@dataclass(frozen=True)
class Scratch:
    """One config's memory between launches, zero at the start. Up to ``ready`` the tensors lie on the heap."""

    epoch_counter: torch.Tensor
    """int64 [1]: see ``primitives/counters.py``."""
    arrivals: torch.Tensor
    """int32 [2, tiles]: parts of a tile that have arrived, over all launches that used the slot."""
    returns: torch.Tensor
    """int32 [2, tiles], ``two_shot``: results of a tile that have arrived."""
    inbox: torch.Tensor
    """Parts of tiles, one after the other: in C's type, or as words, see ``wire_type``."""
    inbox_scales: torch.Tensor | None
    """fp32, one for each row of a tile in an inbox of fp8, in the tiles' order; None otherwise."""
    results: torch.Tensor
    """Sums of tiles, ``two_shot``, 2 * tiles of them: likewise."""
    ready: torch.Tensor | None
    """int32 [world_size]: ranks that have ended their GEMM; None in the modes of the space, like all further ones."""
    partials: torch.Tensor
    """fp32 [tiles * splits, block_m, block_n], this rank's alone, like the tickets; see ``join_splits``."""
    tickets: torch.Tensor
    """int32 [tiles]"""

    phase: torch.Tensor | None
    """int32 [1], this rank's alone: see ``end_phase``."""
    parts: torch.Tensor | None
    """[launches, tiles, block_m, block_n] in C's type, this rank's alone: its parts between the phases. In
    ``own_collective`` a chunk of the library's product for each launch, row by row, in tiles of a single row; what the
    last of them has beyond it is sent, and not stored."""

    def poison(self) -> None:
        """Fill with NaN what a right launch writes before it reads it."""
        for inbox in (self.inbox, self.results):
            poison_inbox(inbox)
        if self.inbox_scales is not None:
            poison_inbox(self.inbox_scales)
        if self.parts is not None:
            self.parts.fill_(torch.nan)
