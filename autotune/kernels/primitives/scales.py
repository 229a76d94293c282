"""Scales of fp8: what a GEMM's sums are multiplied by, at a tile's end or, by blocks, at every step; rounding to fp8.

Scales are fp32. SCALES says which there are, see ``dtypes.SCALES``: TENSOR one number, ROW one for each row of A
[rows, 1] and each column of B [1, columns], BLOCK one for each row and 128 of K in A [rows, K / 128], and for each
128 x 128 of B, stored as B is, [columns / 128, K / 128].
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.runtime.jit import constexpr_function

from autotune.heap import device as heap
from autotune.kernels.primitives.gated import tile_columns

TENSOR = tl.constexpr(1)
ROW = tl.constexpr(2)
BLOCK = tl.constexpr(3)
SIDE = tl.constexpr(128)


@triton.jit
def scaled(acc, operands, row, rows, column, FORM: tl.constexpr):
    """A tile's sums times the scales of the whole depth: ``row`` is the tile's first in A's scales, which have
    ``rows``, ``column`` its first in B's, see ``tile_columns``.
    """
    if FORM.SCALES == TENSOR:
        acc *= tl.load(operands.scale_a) * tl.load(operands.scale_b)
    if FORM.SCALES == ROW:
        acc *= tl.load(operands.scale_a + tl.minimum(row + tl.arange(0, FORM.BLOCK_M), rows - 1))[:, None]
        acc = scaled_columns(acc, operands.scale_b, column, operands.columns, FORM)
    return acc


@triton.jit
def scaled_columns(acc, scale_b, column, columns, FORM: tl.constexpr):
    """A tile's sums times the scales of B's columns."""
    places = tl.minimum(tile_columns(column, columns, FORM.BLOCK_N, FORM.HALVES), columns - 1)
    return acc * tl.load(scale_b + places)[None, :]


@triton.jit
def block_scale_b(scale_b, k, pitch, column, columns, FORM: tl.constexpr):
    """The scales of B's blocks at depth ``k``, for each column of a tile: [1, BLOCK_N].

    A tile is as wide as a block, a part of one or two of them: a number or two for all its columns. Only up's half of
    a tile begins anywhere in a block.
    """
    at = scale_b + k // SIDE
    last = (columns - 1) // SIDE
    places = tl.arange(0, FORM.BLOCK_N)
    if FORM.HALVES:
        half: tl.constexpr = FORM.BLOCK_N // 2
        up = columns // 2 + column // 2
        of_up = _of_two_blocks(at, pitch, up, last, places - half)
        scales = tl.where(places < half, tl.load(at + column // 2 // SIDE * pitch), of_up)
    elif FORM.BLOCK_N <= SIDE:
        scales = tl.full((FORM.BLOCK_N,), tl.load(at + column // SIDE * pitch), tl.float32)
    else:
        scales = _of_two_blocks(at, pitch, column, last, places)
    return scales[None, :]


@triton.jit
def _of_two_blocks(at, pitch, column, last, places):
    """The scale of each column ``column`` + ``places``, in its block or the next; ``last`` is the last one there is."""
    block = column // SIDE
    scale = tl.load(at + block * pitch)
    next_scale = tl.load(at + tl.minimum(block + 1, last) * pitch)
    return tl.where(column % SIDE + places < SIDE, scale, next_scale)


@constexpr_function
def largest_of(dtype):
    """The largest number of an fp8 type."""
    return 448.0 if dtype == tl.float8e4nv else 240.0


@constexpr_function
def largest_sent(dtype):
    """The second largest: where parts of a sum travel in fp8, which has no infinity, the largest stands for that."""
    return 416.0 if dtype == tl.float8e4nv else 224.0


@triton.jit
def quantised(value, TYPE: tl.constexpr, SENT: tl.constexpr = False):
    """A tile's rows in an fp8 type, and their scales, fp32 [BLOCK_M]: a row's largest number becomes the type's
    largest. NaN stays NaN, and so becomes what is infinite; or, SENT, what ``received`` makes infinite again.

    Rows of zeros, and of so little that a scale would have fewer digits, or be zero itself, become zeros.
    """
    MOST: tl.constexpr = largest_of(TYPE)
    LARGEST: tl.constexpr = largest_sent(TYPE) if SENT else MOST
    largest = tl.max(tl.abs(value), axis=1)
    if tl.max(largest) == float("inf"):  # a comparison for a whole tile: nearly none has an infinity
        infinite = tl.abs(value) == float("inf")
        largest = tl.max(tl.where(infinite, 0.0, tl.abs(value)), axis=1)
        if SENT:
            bound = (_scales_of(largest, LARGEST) * MOST)[:, None]
            value = tl.clamp(value, -bound, bound, propagate_nan=tl.PropagateNan.ALL)
        else:
            value = tl.where(infinite, float("nan"), value)
    of_rows = _scales_of(largest, LARGEST)
    return narrowed(value / of_rows[:, None], TYPE), of_rows


@triton.jit
def _scales_of(largest, LARGEST: tl.constexpr):
    return tl.where(largest < 1e-35, 1.0, largest / LARGEST)


@triton.jit
def received(tile, of_rows):
    """fp32 values of a ``quantised`` tile that was sent, from fp8 and its rows' scales."""
    value = widened(tile)
    return value * tl.where(tl.abs(value) > largest_sent(tile.dtype), float("inf"), of_rows[:, None])


@triton.jit
def narrowed(value, TYPE: tl.constexpr):
    """Fp32 rounded to an fp8 type. The interpreter's conversion loses the carry of what is rounded up to a power of
    two, a number of fp8 it leaves as it is; and makes a number of NaN.
    """
    if heap.is_interpreted():
        bits = value.to(tl.int32, bitcast=True)
        rounded = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)
        code = rounded.to(TYPE).to(tl.uint8, bitcast=True)
        NAN: tl.constexpr = 0x7F if tl.float8e4nv == TYPE else 0x80
        result = tl.where(value == value, code, NAN).to(tl.uint8).to(TYPE, bitcast=True)
    else:
        result = value.to(TYPE)
    return result


@triton.jit
def widened(tile):
    """A tile of fp8 in fp32; under the interpreter NaN, too, stays what it is."""
    value = tile.to(tl.float32)
    if heap.is_interpreted():
        code = tile.to(tl.uint8, bitcast=True)
        is_nan = (code & 0x7F) == 0x7F if tile.dtype == tl.float8e4nv else code == 0x80
        value = tl.where(is_nan, float("nan"), value)
    return value


@triton.jit
def store_scales(of_rows, scales, row, column, rows, columns):
    """Scales of a tile's rows, one block of columns wide, into those of a matrix: fp32 [rows, columns / SIDE]."""
    rs = row + tl.arange(0, of_rows.shape[0])
    places = scales + rs.to(tl.int64) * (columns // SIDE) + column // SIDE
    tl.store(places, of_rows, mask=(rs < rows) & (column < columns))
