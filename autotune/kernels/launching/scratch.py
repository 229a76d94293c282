"""A config's scratch: allocated on every rank alike, cleared, and only then used."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

from autotune.heap.arena import SymmetricHeap
from autotune.kernels.launching.tensors import Allocate


class Clearable(Protocol):
    """Scratch of any kernel."""

    def clear(self) -> None:
        """As before the first launch: counters are zero."""


S = TypeVar("S", bound=Clearable)


def share(heap: SymmetricHeap, allocate: Callable[[Allocate, Allocate], S]) -> S:
    """What ``allocate(share, own)`` makes, ``share`` on the heap and ``own`` in ordinary memory; clear. Collective."""
    scratch = allocate(heap.allocate, functools.partial(_on, heap.device))
    scratch.clear()
    heap.barrier()
    return scratch


def _on(device: torch.device, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=device)
