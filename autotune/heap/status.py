"""The status word of a rank's launches, and behind it the addresses by which a time-out is told to the other ranks."""

from __future__ import annotations

import torch

from autotune.heap.arena import SymmetricHeap

MOST_RANKS = 16
"""Ranks that can be told of a time-out, whose addresses are ``MOST_TOLD`` in ``heap/device.py``. In a loop over more of
them, kernels of all sizes took up to 12 registers or 8 spilled ones more (sm_90, 2026-11-28).
"""

STATUS_WORDS = 3
"""int64 words before the addresses to which a time-out is told: see ``heap/device.py``."""


def status_shape(world_size: int) -> tuple[int]:
    return (STATUS_WORDS + world_size,)


def new_status(heap: SymmetricHeap) -> torch.Tensor:
    """One with nothing set, on the heap."""
    return heap.allocate(status_shape(heap.world_size), torch.int64).zero_()


def tell_peers(status: torch.Tensor, heap: SymmetricHeap, hosts_word: int) -> None:
    """From now on a time-out sets the first word on all ranks, and the word of the hosts at that address."""
    others = [heap.peer(status, rank).data_ptr() for rank in range(heap.world_size) if rank != heap.rank]
    words = torch.tensor([1 + len(others), hosts_word, *others], dtype=torch.int64, device="cpu")
    status[2 : 2 + len(words)] = words
