"""A config's scratch: allocated on every rank alike, cleared, and only then used."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import torch

from autotune.heap.arena import SymmetricHeap
from autotune.kernels.launching.tensors import Allocate

S = TypeVar("S")

BITS = {2: torch.int16, 4: torch.int32}
"""Integer types by the bytes of an element."""

NAN_LL_WORD = 0x7FC07FC0
"""An LL word whose data is NaN in every element type and whose flag, zero, no launch waits for."""


@dataclass(frozen=True, kw_only=True)
class Counters:
    """A launch's counters, on the heap."""

    epoch_counter: torch.Tensor
    """int64 [1]: see ``primitives/counters.py``."""
    ready: torch.Tensor
    """int32 [world_size]: ranks whose inbox may be written to, whose operand or product may be read."""
    done: torch.Tensor
    """int32 [world_size]: ranks that have made their copies, or have read ours."""

    @classmethod
    def of(cls, world_size: int, shared: Allocate, **others: Any) -> Self:
        world = (world_size,)
        return cls(
            epoch_counter=shared((1,), torch.int64), ready=shared(world, torch.int32), done=shared(world, torch.int32),
            **others,
        )  # fmt: skip

    def poison(self) -> None:
        """Fill with NaN what a right launch writes before it reads it."""


def share(heap: SymmetricHeap, allocate: Callable[[Allocate, Allocate], S]) -> S:
    """The result of ``allocate(share, own)``, ``share`` on the heap and ``own`` in ordinary memory; all zero.
    Collective.

    All of it, not just the counters: kernels poll inboxes too, and what an earlier scratch has left in the same memory
    may be just what they wait for.
    """

    def on_the_heap(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return heap.allocate(shape, dtype).zero_()

    scratch = allocate(on_the_heap, functools.partial(zeros, heap.device))
    heap.barrier()
    return scratch


def wire_type(protocol: str, dtype: torch.dtype) -> torch.dtype:
    """The type of the words that an inbox has for elements of ``dtype``: their own; LL words; sentinel words."""
    if protocol == "signal":
        return dtype
    return torch.int64 if protocol == "ll" else BITS[dtype.itemsize]


def poison_inboxes(*inboxes: torch.Tensor | None) -> None:
    """Fill those that there are, of elements or of LL words (int64), with NaN. Sentinel words stay as they are: what a
    right launch leaves behind is empty, and anything else would be taken for data.
    """
    for inbox in inboxes:
        if inbox is not None and inbox.dtype.is_floating_point:
            inbox.fill_(math.nan)
        elif inbox is not None and inbox.dtype == torch.int64:
            inbox.fill_(NAN_LL_WORD)


def zeros(device: torch.device, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Zeros in ordinary device memory, outside the heap."""
    return torch.zeros(shape, dtype=dtype, device=device)
