"""Sentinel words: data travels alone, and the reader polls it until no word is empty, that is zero in all its bits.

Half the bytes of the LL protocol (``ll.py``), and no signal either: one trip. What is sent is never empty, for +0.0
goes as -0.0, which equals it and is the same as a summand. Whole words become visible at once, of 8, 16 or 32 bits
however wide the store is, and no order among them is needed: each is looked at for itself, by volatile loads, which go
to the L2, where peers' stores arrive. As for LL, this holds on NVIDIA's GPUs.

A word tells that it has come, not when. So it has to be empty again before a peer sends the next one to the same place:

- Words that one program alone reads: ``sentinel_take`` reads and empties them. With two slots, used in turn, the next
  word comes there two launches later, and whoever sends it has something of our launch in between, which began after
  this one had ended. See docs/memory-model.md.
- Words that several programs read: ``sentinel_wait``, three slots, and in each launch one program empties
  (``sentinel_empty``) what the launch before has read.

Inboxes are integers, zero at first, and nothing but these functions writes to them. After a time-out they are to be
made anew: what comes late would be taken for the next launch's.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap


@triton.jit
def sentinel_bits(value):
    """The bits of ``value``, elements of 8, 16 or 32 bits (or integers that hold some), as integers that are not zero.

    Where all bits are zero the highest is set: the sign of a zero.
    """
    if value.dtype.primitive_bitwidth == 32:
        bits = value.to(tl.uint32, bitcast=True)
        bits = (bits | ((bits == 0).to(tl.uint32) << 31)).to(tl.int32, bitcast=True)
    elif value.dtype.primitive_bitwidth == 16:
        bits = value.to(tl.uint16, bitcast=True)
        bits = (bits | ((bits == 0).to(tl.uint16) << 15)).to(tl.int16, bitcast=True)
    else:
        bits = value.to(tl.uint8, bitcast=True)
        bits = (bits | ((bits == 0).to(tl.uint8) << 7)).to(tl.int8, bitcast=True)
    return bits


@triton.jit
def sentinel_wait(place, mask, status, spin_limit):
    """Poll words [any shape] in our own heap until none that ``mask`` asks for is empty; the others are 0.

    No fewer words than the program has threads: else threads that hold the same word could see it at different times.
    Bounded as ``wait`` in ``heap/device.py`` is; where it times out, the words are what was there.
    """
    words = tl.load(place, mask=mask, other=0, volatile=True)
    missing = tl.sum(((words == 0) & mask).to(tl.int32))
    spins = 0
    while (missing > 0) & (spins < spin_limit):
        spins = heap.next_spin(spins, status, spin_limit)
        words = tl.load(place, mask=mask, other=0, volatile=True)
        missing = tl.sum(((words == 0) & mask).to(tl.int32))
    if missing > 0:
        heap.time_out(status)
    return words


@triton.jit
def sentinel_empty(place, mask):
    """Empty words that have been read by all who read them, for a later launch."""
    tl.store(place, tl.zeros(place.shape, dtype=place.dtype.element_ty), mask=mask)


@triton.jit
def sentinel_take(place, mask, status, spin_limit):
    """``sentinel_wait`` by the only program that reads these words: they are empty afterwards."""
    words = sentinel_wait(place, mask, status, spin_limit)
    sentinel_empty(place, mask)
    return words
