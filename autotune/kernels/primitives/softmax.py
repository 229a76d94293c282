"""Softmax over parts: partial results that are each normalised, with their log-sum-exps, merged safely.

A part is (values, lse): values = sum(p v) / sum(p) and lse = log2(sum(p)), p = exp2(logit), logits in units of log2.
An empty part has lse = -inf and values = 0. All weights are exp2(lse - largest lse) <= 1: nothing overflows, and a
merge of empty parts is empty.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def update(acc, total, running_max, values, lse):
    """Take in ``values`` [parts, rows, D] and ``lse`` [parts, rows]; acc is [rows, D], total and running_max [rows]."""
    new_max = tl.maximum(running_max, tl.max(lse, axis=0))
    shift = tl.where(new_max == float("-inf"), 0.0, new_max)
    weights = tl.exp2(lse - shift[None, :])
    alpha = tl.exp2(running_max - shift)
    acc = acc * alpha[:, None] + tl.sum(values * weights[:, :, None], axis=0)
    return acc, total * alpha + tl.sum(weights, axis=0), new_max


@triton.jit
def finalize(acc, total, running_max):
    """The part (values, lse) that acc = sum(p v), total = sum(p), both relative to exp2(running_max), stand for."""
    empty = total == 0.0
    divisor = tl.where(empty, 1.0, total)
    return acc / divisor[:, None], tl.where(empty, float("-inf"), running_max + tl.log2(divisor))


@triton.jit
def merge_parts(
    values, lse, value_stride, lse_stride, rows, valid, parts, D: tl.constexpr, CHUNK: tl.constexpr,
    AHEAD: tl.constexpr = 1,
):  # fmt: skip
    """Merge ``parts`` parts of ``rows``: values[part * value_stride + row * D + …], lse[part * lse_stride + row].

    ``rows`` and ``valid`` are [rows]; CHUNK parts are loaded at a time, AHEAD such loads are on their way at once.
    Returns the part that they make, fp32.
    """
    ROWS: tl.constexpr = rows.shape[0]
    columns = tl.arange(0, D)
    acc = tl.zeros((ROWS, D), dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    running_max = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    for first in tl.range(0, parts, CHUNK, num_stages=AHEAD):
        part = first + tl.arange(0, CHUNK)
        there = (part < parts)[:, None] & valid[None, :]
        place = lse + part.to(tl.int64)[:, None] * lse_stride + rows[None, :]
        part_lse = tl.load(place, mask=there, other=float("-inf"))
        place = values + part.to(tl.int64)[:, None, None] * value_stride + rows[None, :, None] * D
        tile = tl.load(place + columns[None, None, :], mask=there[:, :, None], other=0.0).to(tl.float32)
        acc, total, running_max = update(acc, total, running_max, tile, part_lse)
    return finalize(acc, total, running_max)
