"""Softmax over parts: partial results that are each normalised, with their log-sum-exps, merged safely.

A part is (values, lse): values = sum(p v) / sum(p) and lse = log2(sum(p)), p = exp2(logit), logits in units of log2.
An empty part has lse = -inf and values = 0. All weights are exp2(lse - largest lse) <= 1: nothing overflows, and a
merge of empty parts is empty.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def finalize(acc, total, running_max):
    """The part (values, lse) that acc = sum(p v), total = sum(p), both relative to exp2(running_max), stand for."""
    empty = total == 0.0
    divisor = tl.where(empty, 1.0, total)
    return acc / divisor[:, None], tl.where(empty, float("-inf"), running_max + tl.log2(divisor))


@triton.jit
def merge_parts(values, lse, value_stride, lse_stride, rows, valid, parts, D: tl.constexpr, CHUNK: tl.constexpr):
    """Merge ``parts`` parts of ``rows``: values[part * value_stride + row * D + …], lse[part * lse_stride + row].

    ``rows`` and ``valid`` are [rows]; CHUNK parts are loaded at a time. Returns the part that they make, fp32. Parts
    are no dimension of a tile: threads of several warps would have them, and meet at barriers for each maximum and sum.
    """
    ROWS: tl.constexpr = rows.shape[0]
    place = values + rows[:, None] * D + tl.arange(0, D)[None, :]
    acc = tl.zeros((ROWS, D), dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    running_max = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    for first in range(0, parts, CHUNK):
        new_max = running_max
        for each in tl.static_range(CHUNK):
            part = tl.cast(first + each, tl.int64)
            there = valid & (first + each < parts)
            new_max = tl.maximum(new_max, tl.load(lse + part * lse_stride + rows, mask=there, other=float("-inf")))
        shift = tl.where(new_max == float("-inf"), 0.0, new_max)
        alpha = tl.exp2(running_max - shift)
        acc *= alpha[:, None]
        total *= alpha
        for each in tl.static_range(CHUNK):
            part = tl.cast(first + each, tl.int64)
            there = valid & (first + each < parts)
            part_lse = tl.load(lse + part * lse_stride + rows, mask=there, other=float("-inf"))
            tile = tl.load(place + part * value_stride, mask=there[:, None], other=0.0).to(tl.float32)
            weights = tl.exp2(part_lse - shift)
            acc += tile * weights[:, None]
            total += weights
        running_max = new_max
    return finalize(acc, total, running_max)
