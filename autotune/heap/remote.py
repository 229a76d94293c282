"""Loads, stores and atomic adds in a peer's heap, with the signatures of Iris's: for hosts without Iris."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load(pointer, to_rank, from_rank, heap_bases, mask=None, other=None, hint: tl.constexpr = None):
    """Load from ``from_rank``'s heap, at the place that ``pointer`` has in ours; we are ``to_rank``."""
    return tl.load(_there(pointer, to_rank, from_rank, heap_bases, hint), mask=mask, other=other)


@triton.jit
def store(pointer, value, from_rank, to_rank, heap_bases, mask=None, hint: tl.constexpr = None):
    tl.store(_there(pointer, from_rank, to_rank, heap_bases, hint), value, mask=mask)


@triton.jit
def atomic_add(pointer, val, from_rank, to_rank, heap_bases, mask=None, sem=None, scope=None):
    return tl.atomic_add(_there(pointer, from_rank, to_rank, heap_bases, None), val, mask=mask, sem=sem, scope=scope)


@triton.jit
def _there(pointer, ours, theirs, heap_bases, hint: tl.constexpr):
    """The same place in another rank's heap; ``hint``: it is as aligned and contiguous as that."""
    offset = tl.cast(pointer, tl.int64) - tl.load(heap_bases + ours)
    base = tl.cast(tl.load(heap_bases + theirs), tl.pointer_type(tl.int8))
    found = tl.cast(base + offset, pointer.dtype)
    if hint is not None:
        found = tl.max_contiguous(tl.multiple_of(found, hint), hint)
    return found
