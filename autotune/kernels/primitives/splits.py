"""Split-K: several programs share a tile's depth; the last to finish adds up what the others left, in a fixed order."""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.kernels.primitives.counters import last_of


@triton.jit
def split_range(split, depth, SPLITS: tl.constexpr, BLOCK_K: tl.constexpr):
    """First and end index along K of one of SPLITS parts, whole steps of BLOCK_K but for the last; may be empty."""
    length = tl.cdiv(tl.cdiv(depth, BLOCK_K), SPLITS) * BLOCK_K
    begin = tl.minimum(split * length, depth)
    return begin, tl.minimum(begin + length, depth)


@triton.jit
def join_splits(acc, partials, tickets, tile, split, SPLITS: tl.constexpr):
    """Leave this split's part of a tile; the split that comes last gets the sum. Returns (sum, whether we are last).

    ``partials`` is fp32 [tiles, SPLITS, BLOCK_M, BLOCK_N], ``tickets`` int32 [tiles], zero before the first launch and
    after each. The order of the sum does not depend on who comes last: the result is the same every time. What is
    returned to those who are not last means nothing.
    """
    place = tl.arange(0, acc.shape[0])[:, None] * acc.shape[1] + tl.arange(0, acc.shape[1])[None, :]
    parts = partials + tl.cast(tile, tl.int64) * (SPLITS * acc.numel) + place
    tl.store(parts + split * acc.numel, acc)
    last = last_of(tickets + tile, SPLITS)
    if last:
        acc = tl.load(parts)
        for other in tl.static_range(1, SPLITS):
            acc += tl.load(parts + other * acc.numel)
    return acc, last
