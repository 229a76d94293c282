"""Program order and a GEMM tile's way out: which tile comes next, its bias, residual and epilogue, its store."""

from __future__ import annotations

from collections import namedtuple

import triton
import triton.language as tl
from triton.runtime.jit import constexpr_function

from autotune.kernels.primitives.gated import PLAIN, gated, left_and_right, tile_columns
from autotune.kernels.primitives.scales import SIDE, quantised, store_scales


@triton.jit
def swizzle(tile, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """Tile number to (m, n): GROUP_M rows of tiles are walked column by column, so that B's columns stay in the L2."""
    in_group = GROUP_M * tiles_n
    group = tile // in_group
    first_m = group * GROUP_M
    rows = tl.minimum(tiles_m - first_m, GROUP_M)
    local = tile - group * in_group
    return first_m + local % rows, local // rows


@triton.jit
def row_of(m, rows, BLOCK_M: tl.constexpr):
    """The first row of a tile. The last tile ends with the matrix, and has the same numbers as the one before it in the
    rows that both have: a load by TMA takes more than twice as long for a row beyond the edge as for another, so that
    129 rows in tiles of 128 took 1.3 times as long as 256 (H100, one round of tiles).
    """
    return tl.maximum(tl.minimum(m * BLOCK_M, rows - BLOCK_M), 0)


Output = namedtuple("Output", "c rows columns bias residual scales shard", defaults=(None, None, None, None))
"""C, row-major, a tensor descriptor or a pointer, by the rows and columns of the product: with an EPILOGUE it has half
as many columns. With ``scales`` it is fp8, and a tile one block wide. Of a C [shards, rows, columns], which has no
residual, it is one ``shard``: what a tile has beyond its rows is not stored into the next.
"""


@constexpr_function
def is_descriptor(c):
    return hasattr(c, "block_shape")


@triton.jit
def finished(acc, out, row, column, HALVES: tl.constexpr = 0, first=None):
    """A tile's sums + bias [columns] + residual [rows, columns] from row ``first`` on, in fp32."""
    if out.bias is not None:
        columns = tile_columns(column, out.columns, acc.shape[1], HALVES)
        acc = acc + tl.load(out.bias + columns, mask=columns < out.columns, other=0.0).to(tl.float32)[None, :]
    if out.residual is not None:
        rs = row + tl.arange(0, acc.shape[0])
        cs = column + tl.arange(0, acc.shape[1])
        wanted = rs < out.rows if first is None else (rs >= first) & (rs < out.rows)
        inside = wanted[:, None] & (cs < out.columns)[None, :]
        pointers = out.residual + rs.to(tl.int64)[:, None] * out.columns + cs[None, :]
        acc = acc + tl.load(pointers, mask=inside, other=0.0).to(tl.float32)
    return acc


@triton.jit
def put_tile(tile, c, row, column, rows, width, first=None):
    """C[row : …, column : …] = tile, rounded to C's type, from row ``first`` on. C is row-major [rows, width]; the edge
    is masked.
    """
    if is_descriptor(c):
        c.store([row, column], tile.to(c.dtype))
    else:
        rs = row + tl.arange(0, tile.shape[0])
        cs = column + tl.arange(0, tile.shape[1])
        pointers = c + rs.to(tl.int64)[:, None] * width + cs[None, :]
        wanted = rs < rows if first is None else (rs >= first) & (rs < rows)
        tl.store(pointers, tile.to(c.dtype.element_ty), mask=wanted[:, None] & (cs < width)[None, :])


@triton.jit
def put_in_shard(tile, out, row, column, width):
    """``put_tile`` into C, or into its shard."""
    if out.shard is None:
        put_tile(tile, out.c, row, column, out.rows, width)
    elif is_descriptor(out.c):
        out.c.store([out.shard, row, column], tl.reshape(tile.to(out.c.dtype), (1, tile.shape[0], tile.shape[1])))
    else:
        put_tile(tile, shard_of(out.c, out, width), row, column, out.rows, width)


@triton.jit
def shard_of(matrix, out, width):
    """A matrix of C's rows from those of its shard on."""
    if out.shard is not None:
        matrix += tl.cast(out.shard, tl.int64) * out.rows * width
    return matrix


@triton.jit
def store_tile(acc, out, row, column, FORM: tl.constexpr):
    """C[row : …, column : …] = acc + bias + residual, rounded to C's type, or what EPILOGUE makes of it."""
    acc = finished(acc, out, row, column, FORM.HALVES)
    if FORM.EPILOGUE != PLAIN:
        acc = gated(acc, FORM)
        if out.scales is not None:
            tl.static_assert(FORM.BLOCK_N // 2 == SIDE)
            acc, of_rows = quantised(acc, out.c.dtype if is_descriptor(out.c) else out.c.dtype.element_ty)
            scales = shard_of(out.scales, out, out.columns // 2 // SIDE)
            store_scales(of_rows, scales, row, column // 2, out.rows, out.columns // 2)
        put_in_shard(acc, out, row, column // 2, out.columns // 2)
    elif is_descriptor(out.c) and FORM.BLOCK_N >= 64:
        # Two halves: the whole 128x256 tile's 64 KiB would not fit beside four stages of operands.
        left, right = left_and_right(acc)
        put_in_shard(left, out, row, column, out.columns)
        put_in_shard(right, out, row, column + FORM.BLOCK_N // 2, out.columns)
    else:
        put_in_shard(acc, out, row, column, out.columns)
