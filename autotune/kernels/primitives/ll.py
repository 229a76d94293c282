"""Words that carry their own flag: an fp32 and the flag of the launch in 64 bits, stored and read as one.

Eight aligned bytes arrive together or not at all, so that a reader who finds the flag it waits for has the value too.
There is no signal and no fence: what comes over is there after one trip instead of two, at twice the bytes.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def ll_pack(value, flag):
    """The fp32 ``value`` as words for launch ``flag`` (int32)."""
    bits = value.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    return bits | (flag.to(tl.int64) << 32)


@triton.jit
def ll_unpack(words):
    """The fp32 values of words."""
    return words.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def ll_missing(words, flag, mask):
    """How many of the words that ``mask`` asks for do not carry ``flag`` yet."""
    return tl.sum(tl.reshape((mask & ((words >> 32).to(tl.int32) != flag)).to(tl.int32), (words.numel,)), axis=0)


@triton.jit
def ll_wait(place, flag, mask, status, spin_limit):
    """Poll words [any shape] in our own heap until all carry ``flag``; returns their values, 0 where masked out.

    Bounded as ``wait`` in ``heap/device.py`` is; where it times out, the values are what was there.
    """
    words = tl.load(place, mask=mask, other=0, volatile=True)
    missing = ll_missing(words, flag, mask)
    spins = 0
    while (missing > 0) & (spins < spin_limit):
        spins += 1
        if spins % 256 == 0:
            if tl.load(status, volatile=True) != 0:
                spins = spin_limit
        words = tl.load(place, mask=mask, other=0, volatile=True)
        missing = ll_missing(words, flag, mask)
    if missing > 0:
        tl.atomic_xchg(status, 1)
    return ll_unpack(words)
