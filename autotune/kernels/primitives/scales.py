"""Scales of fp8 operands: what a GEMM's sums are multiplied by, at a tile's end or, by blocks, at every step.

Scales are fp32. SCALES says which there are, see ``dtypes.SCALES``: TENSOR one number, ROW one for each row of A
[rows, 1] and each column of B [1, columns], BLOCK one for each row and 128 of K in A [rows, K / 128], and for each
128 x 128 of B, stored as B is, [columns / 128, K / 128].
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.kernels.primitives.gated import tile_columns

NO_SCALES = tl.constexpr(0)
TENSOR = tl.constexpr(1)
ROW = tl.constexpr(2)
BLOCK = tl.constexpr(3)
SIDE = tl.constexpr(128)


@triton.jit
def scaled(
    acc, scale_a, row, rows, scale_b, column, columns,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SCALES: tl.constexpr, HALVES: tl.constexpr = False,
):  # fmt: skip
    """A tile's sums times the scales of the whole depth: ``row`` is the tile's first in A's scales, which have
    ``rows``, ``column`` its first in B's, see ``tile_columns``.
    """
    if SCALES == TENSOR:
        acc *= tl.load(scale_a) * tl.load(scale_b)
    if SCALES == ROW:
        acc *= tl.load(scale_a + tl.minimum(row + tl.arange(0, BLOCK_M), rows - 1))[:, None]
        acc = scaled_columns(acc, scale_b, column, columns, BLOCK_N, HALVES)
    return acc


@triton.jit
def scaled_columns(acc, scale_b, column, columns, BLOCK_N: tl.constexpr, HALVES: tl.constexpr = False):
    """A tile's sums times the scales of B's columns."""
    return acc * tl.load(scale_b + tl.minimum(tile_columns(column, columns, BLOCK_N, HALVES), columns - 1))[None, :]


@triton.jit
def block_scale_b(scale_b, k, pitch, column, columns, BLOCK_N: tl.constexpr, HALVES: tl.constexpr = False):
    """The scales of B's blocks at depth ``k``, for each column of a tile: [1, BLOCK_N]."""
    at = tl.minimum(tile_columns(column, columns, BLOCK_N, HALVES), columns - 1) // SIDE
    return tl.load(scale_b + at * pitch + k // SIDE)[None, :]
