"""Persistent buffers of the NCCL baselines, so that calls allocate nothing."""

from __future__ import annotations

import math

import torch

from autotune.heap.arena import SymmetricHeap


def kept(heap: SymmetricHeap, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of undefined contents. All calls on a heap, which never overlap, share the memory of a name.

    It grows with what is asked for. What it was before stays alive with the heap, for captured graphs have its address;
    all of it together is less than three times the largest.
    """
    size = math.prod(shape) * dtype.itemsize
    buffers = heap.kept.setdefault(name, [])
    if not buffers or buffers[-1].numel() < size:
        least = 2 * buffers[-1].numel() if buffers else 0
        buffers.append(torch.empty(max(size, least), dtype=torch.uint8, device=heap.device))
    return buffers[-1][:size].view(dtype).view(shape)
