"""Program order and a GEMM tile's way out: which tile comes next, its bias, residual and epilogue, its store."""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.kernels.primitives.gated import PLAIN, gated, halves_of, tile_columns
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
def add_bias(acc, bias, column, width, BLOCK_N: tl.constexpr, HALVES: tl.constexpr = 0):
    """Acc [BLOCK_M, BLOCK_N] + bias [width] from ``column`` on, in fp32."""
    columns = tile_columns(column, width, BLOCK_N, HALVES)
    return acc + tl.load(bias + columns, mask=columns < width, other=0.0).to(tl.float32)[None, :]


@triton.jit
def add_residual(
    acc, residual, row, column, rows, width, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """Acc [BLOCK_M, BLOCK_N] + residual [rows, width] from (``row``, ``column``) on, in fp32."""
    rs = row + tl.arange(0, BLOCK_M)
    cs = column + tl.arange(0, BLOCK_N)
    inside = (rs < rows)[:, None] & (cs < width)[None, :]
    pointers = residual + rs.to(tl.int64)[:, None] * width + cs[None, :]
    return acc + tl.load(pointers, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def put_tile(
    tile, c, row, column, rows, width, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TMA: tl.constexpr
):  # fmt: skip
    """C[row : …, column : …] = tile, rounded to C's type. C is row-major [rows, width]; the edge is masked."""
    if TMA:
        c.store([row, column], tile.to(c.dtype))
    else:
        rs = row + tl.arange(0, BLOCK_M)
        cs = column + tl.arange(0, BLOCK_N)
        pointers = c + rs.to(tl.int64)[:, None] * width + cs[None, :]
        tl.store(pointers, tile.to(c.dtype.element_ty), mask=(rs < rows)[:, None] & (cs < width)[None, :])


@triton.jit
def store_tile(
    acc, c, row, column, rows, width, bias,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TMA: tl.constexpr, BIAS: tl.constexpr,
    EPILOGUE: tl.constexpr = PLAIN, HALVES: tl.constexpr = 0, residual=None, c_scales=None,
):  # fmt: skip
    """C[row : …, column : …] = acc + bias + residual (None: without), rounded to C's type, or what EPILOGUE makes of
    it: half as many columns of a C [rows, width / 2]. With ``c_scales`` that is fp8, and a tile one block wide.
    """
    if BIAS:
        acc = add_bias(acc, bias, column, width, BLOCK_N, HALVES)
    if residual is not None:
        acc = add_residual(acc, residual, row, column, rows, width, BLOCK_M, BLOCK_N)
    if EPILOGUE != PLAIN:
        acc = gated(acc, EPILOGUE, HALVES, BLOCK_M, BLOCK_N)
        if c_scales is not None:
            tl.static_assert(BLOCK_N // 2 == SIDE)
            acc, of_rows = quantised(acc, c.dtype if TMA else c.dtype.element_ty)
            store_scales(of_rows, c_scales, row, column // 2, rows, width // 2, BLOCK_M)
        put_tile(acc, c, row, column // 2, rows, width // 2, BLOCK_M, BLOCK_N // 2, TMA)
    elif TMA and BLOCK_N >= 64:
        # Two halves: the whole 128x256 tile's 64 KiB would not fit beside four stages of operands.
        left, right = halves_of(acc, BLOCK_M, BLOCK_N)
        c.store([row, column], left.to(c.dtype))
        c.store([row, column + BLOCK_N // 2], right.to(c.dtype))
    else:
        put_tile(acc, c, row, column, rows, width, BLOCK_M, BLOCK_N, TMA)
