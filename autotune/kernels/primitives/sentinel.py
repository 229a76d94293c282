"""Sentinel words: data travels alone, and the reader polls it until no word is empty, that is zero in all its bits.

Half the bytes of the LL protocol (``ll.py``), and no signal either: one trip. What is sent is never empty: an empty
word stands for one NaN among many, which no arithmetic gives, and which goes as its neighbour. All other bits arrive as
they are; whoever keeps what it sends keeps what arrives (``sentinel_data``), and so ranks have the same bits. Whole
words become visible at once, of 16 or 32 bits however wide the store is, and no order among them is needed: each is
looked at for itself, by volatile loads, which go to the L2, where peers' stores arrive. As for LL, this holds on
NVIDIA's GPUs.

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
from triton.runtime.jit import constexpr_function

from autotune.heap import device as heap
from autotune.kernels.primitives.ll import any_set

NO_NUMBER = tl.constexpr(-91)
"""The bits for which an empty word stands: a NaN in bf16 and fp16, and in fp32."""
TWO_NO_NUMBERS = tl.constexpr(-0x5A005B)
"""Both halves of an int32 that stands for two empty words of 16 bits."""


@constexpr_function
def pairs(TYPE, elements, threads):
    """True if sentinel words are polled two at a time: of 16 bits, and enough that no thread holds another's."""
    return TYPE.primitive_bitwidth == 16 and elements >= 2 * threads


@constexpr_function
def together(sources, registers):
    """How many sources are polled at once, if the words of one take ``registers``: all take half of a multiprocessor's
    at most. Of 8 rows of 8192 by LL, 16 warps had left 222 words of each thread to the stack.
    """
    return min(triton.next_power_of_2(sources), max(1, (1 << 15) // registers))


@triton.jit
def sentinel_bits(value):
    """The words that carry ``value``, elements of 16 or 32 bits (or integers that hold some): none of them is zero."""
    WIDE: tl.constexpr = value.dtype.primitive_bitwidth == 32
    UNSIGNED: tl.constexpr = tl.uint32 if WIDE else tl.uint16
    words = value.to(tl.int32 if WIDE else tl.int16, bitcast=True) ^ NO_NUMBER
    some = tl.maximum(words.to(UNSIGNED, bitcast=True), tl.cast(1, UNSIGNED))  # two of 16 bits at a time on sm_90
    return some.to(words.dtype, bitcast=True)


@triton.jit
def sentinel_data(words, PAIRS: tl.constexpr = False):
    """The bits that words carry, as integers; with PAIRS each of int32 holds two of 16 bits."""
    return words ^ (TWO_NO_NUMBERS if PAIRS else NO_NUMBER)


@triton.jit
def read_words(place, mask, PAIRS: tl.constexpr):
    return tl.load(place, mask=mask, other=TWO_NO_NUMBERS if PAIRS else NO_NUMBER, volatile=True)


@triton.jit
def sentinel_read(place, mask):
    """Values of words that have arrived; 0 outside ``mask``."""
    return sentinel_data(read_words(place, mask, False))


@triton.jit
def any_empty(words, PAIRS: tl.constexpr):
    """Not 0 if a word is empty or, with PAIRS, half of one: subtracting 1 sets the top bit of that half."""
    if PAIRS:
        empty = (words - 0x10001) & ~words & -0x7FFF8000
    else:
        empty = (words == 0).to(tl.int32)
    return any_set(empty)


@triton.jit
def sentinel_wait(place, mask, peers, PAIRS: tl.constexpr = False):
    """Poll words [any shape] in our own heap until none that ``mask`` asks for is empty, and read them; with PAIRS two
    of 16 bits at a time, in half the registers.

    No fewer words than the program has threads: else threads that hold the same word could see it at different times.
    Bounded as ``wait`` in ``heap/device.py`` is; where it times out, what has not come is NaN.
    """
    words = read_words(place, mask, PAIRS)
    missing = any_empty(words, PAIRS)
    spins = 0
    while (missing != 0) & (spins < peers.spins):
        spins = heap.next_spin(spins, peers.status, peers.spins)
        words = read_words(place, mask, PAIRS)
        missing = any_empty(words, PAIRS)
    if missing != 0:
        heap.time_out(peers.status)
    return sentinel_data(words, PAIRS)


@triton.jit
def sentinel_empty(place, mask):
    """Empty words that have been read by all who read them, for a later launch."""
    tl.store(place, tl.zeros(place.shape, dtype=place.dtype.element_ty), mask=mask)


@triton.jit
def sentinel_take(place, mask, peers, PAIRS: tl.constexpr = False):
    """``sentinel_wait`` by the only program that reads these words: they are empty afterwards."""
    data = sentinel_wait(place, mask, peers, PAIRS)
    sentinel_empty(place, mask)
    return data
