"""The grouped GEMM: each expert's rows times its own B, in one launch, row counts known on the device only.

Rows lie one expert after the other: those of expert e are ``offsets[e]`` to ``offsets[e + 1]``, int32, and nothing else
says how many there are. Programs are as many as may be needed, and walk the tiles that there are: expert by expert,
within one as ``swizzle`` orders them. A tile has rows of one expert alone; its last rows may be the next one's, or
none at all, and are not stored. A's rows lie like that too, or are gathered: ``gather`` int32 [rows] divided by PER
names the row of A, as ``pairs`` of a plan divided by the experts per token names a token.

``swap_ab`` computes a tile's transpose: sm_90's matrix unit takes 64 rows at least, so where an expert has few, they
had better be the columns.
"""

from __future__ import annotations

from collections import namedtuple

import triton
import triton.language as tl

from autotune.kernels.primitives.gated import PLAIN, gated, loaded_columns, with_bias
from autotune.kernels.primitives.known import Gemm, known
from autotune.kernels.primitives.products import add_now, add_product, apart, together
from autotune.kernels.primitives.scales import BLOCK, ROW, SIDE, block_scale_b, scaled_columns
from autotune.kernels.primitives.tiles import Output, put_tile, store_tile, swizzle

Experts = namedtuple("Experts", "b K columns stride_be stride_bk stride_bn scale_b bias", defaults=(None, None))
"""B [experts, K, columns], a tensor descriptor with TMA; its scales: of all experts, one for each column or block, as B
is stored; and biases [experts, columns], or None.
"""


@triton.jit
def row_blocks(offsets, EXPERTS: tl.constexpr, BLOCK_M: tl.constexpr):
    """The number of blocks of BLOCK_M rows that experts 0 to e have: int32 [power of two from EXPERTS], growing.

    The last is that of all.
    """
    experts = tl.arange(0, triton.next_power_of_2(EXPERTS))
    exists = experts < EXPERTS
    begin = tl.load(offsets + experts, mask=exists, other=0)
    end = tl.load(offsets + experts + 1, mask=exists, other=0)
    return tl.cumsum(tl.cdiv(end - begin, BLOCK_M), axis=0)


@triton.jit
def expert_tile(tile, blocks, offsets, tiles_n, group_m, BLOCK_M: tl.constexpr):
    """Tile number to (expert, its first row, the end of the expert's rows, column of tiles). ``blocks``: of
    ``row_blocks``; ``tiles_n`` columns of tiles are walked for each expert.
    """
    before = blocks * tiles_n <= tile
    expert = tl.sum(before.to(tl.int32), axis=0)
    local = tile - tl.max(tl.where(before, blocks, 0), axis=0) * tiles_n
    first, end = tl.load(offsets + expert), tl.load(offsets + expert + 1)
    m, n = swizzle(local, tl.cdiv(end - first, BLOCK_M), tiles_n, group_m)
    return expert, first + m * BLOCK_M, end, n


@triton.jit
def own_blocks_of(first, end, own, own_end, BLOCK_M: tl.constexpr):
    """The first of an expert's blocks that has only tokens of this rank, and how many there are. The expert has rows
    ``first`` to ``end``, this rank ``own`` to ``own_end``.
    """
    begin = tl.cdiv(own - first, BLOCK_M)
    last = tl.where(own_end == end, tl.cdiv(end - first, BLOCK_M), (own_end - first) // BLOCK_M)
    return begin, tl.maximum(last - begin, 0)


@triton.jit
def own_row_blocks(offsets, own_rows, EXPERTS: tl.constexpr, BLOCK_M: tl.constexpr):
    """The number of blocks of our own tokens alone that experts 0 to e have, as ``row_blocks``."""
    experts = tl.arange(0, triton.next_power_of_2(EXPERTS))
    exists = experts < EXPERTS
    first = tl.load(offsets + experts, mask=exists, other=0)
    end = tl.load(offsets + experts + 1, mask=exists, other=0)
    own = tl.load(own_rows + 2 * experts, mask=exists, other=0)
    own_end = tl.load(own_rows + 2 * experts + 1, mask=exists, other=0)
    _, count = own_blocks_of(first, end, own, own_end, BLOCK_M)
    return tl.cumsum(count, axis=0)


@triton.jit
def own_first_tile(tile, blocks, own_blocks, offsets, own_rows, tiles_n, group_m, BLOCK_M: tl.constexpr):
    """``expert_tile`` in two passes over the experts: first the blocks of our own tokens alone, then those with
    others'. ``own_blocks``: of ``own_row_blocks``.
    """
    early = tl.max(own_blocks, axis=0) * tiles_n
    of_own = tile < early
    among = tl.where(of_own, own_blocks, blocks - own_blocks)
    tile -= tl.where(of_own, 0, early)
    before = among * tiles_n <= tile
    expert = tl.sum(before.to(tl.int32), axis=0)
    local = tile - tl.max(tl.where(before, among, 0), axis=0) * tiles_n
    first, end = tl.load(offsets + expert), tl.load(offsets + expert + 1)
    begin, count = own_blocks_of(
        first, end, tl.load(own_rows + 2 * expert), tl.load(own_rows + 2 * expert + 1), BLOCK_M
    )
    there = tl.where(of_own, count, tl.cdiv(end - first, BLOCK_M) - count)
    m, n = swizzle(local, there, tiles_n, group_m)
    m += tl.where(of_own, begin, tl.where(m < begin, 0, count))
    return expert, first + tl.maximum(m, 0) * BLOCK_M, end, n


@triton.jit
def rows_of(gather, row, end, PER: tl.constexpr, BLOCK_M: tl.constexpr):
    """The rows of A that make a tile from ``row`` on, int64 [BLOCK_M]; those beyond ``end`` are its last again."""
    rows = tl.minimum(row + tl.arange(0, BLOCK_M), end - 1)
    if gather is not None:
        rows = tl.load(gather + rows) // PER
    return rows.to(tl.int64)


@triton.jit
def scales_per_row(K, SCALES: tl.constexpr):
    """The number of scales that a row of A [, K] has."""
    return K // SIDE if SCALES == BLOCK else 1


@triton.jit
def _load_b(experts, expert, k, column, FORM: tl.constexpr):
    """B[expert][k : k + BLOCK_K, column : column + BLOCK_N], zero beyond K."""
    if FORM.TMA:
        if FORM.HALVES:
            tile = tl.reshape(experts.b.load([expert, 0, column // 2, k]), (FORM.BLOCK_N, FORM.BLOCK_K)).T
        elif FORM.B_TRANSPOSED:
            tile = tl.reshape(experts.b.load([expert, column, k]), (FORM.BLOCK_N, FORM.BLOCK_K)).T
        else:
            tile = tl.reshape(experts.b.load([expert, k, column]), (FORM.BLOCK_K, FORM.BLOCK_N))
    else:
        ks = k + tl.arange(0, FORM.BLOCK_K)
        wide = loaded_columns(column, experts.columns, FORM).to(tl.int64)
        pointers = experts.b + expert.to(tl.int64) * experts.stride_be + ks.to(tl.int64)[:, None] * experts.stride_bk
        pointers += wide[None, :] * experts.stride_bn
        if FORM.EVEN_K:
            tile = tl.load(pointers)
        else:
            tile = tl.load(pointers, mask=(ks < experts.K)[:, None], other=0.0)
    return tile


@triton.jit
def _load_a(a, row, k, K, FORM: tl.constexpr):
    """A step of the rows of A from ``row`` on, or, without A_TMA, of those that begin at ``a``; zero beyond K."""
    if FORM.A_TMA:
        tile = a.load([row, k])
    else:
        ks = k + tl.arange(0, FORM.BLOCK_K)
        if FORM.EVEN_K:
            tile = tl.load(a[:, None] + ks[None, :])
        else:
            tile = tl.load(a[:, None] + ks[None, :], mask=(ks < K)[None, :], other=0.0)
    return tile


@triton.jit
def _product_in_parts(acc, a, row, scale_a, scale_b, experts, expert, column, FORM: tl.constexpr):
    """The sum of ``expert_product`` with PARTS."""
    upper, lower = apart(acc)
    if FORM.A_TMA:
        a_upper, a_lower = a, a
    else:
        a_upper, a_lower = tl.split(tl.permute(tl.reshape(a, (2, FORM.BLOCK_M // 2)), (1, 0)))
        # Apart, the compiler no longer sees that operands, and rows that TMA could take, begin at multiples of 16
        # bytes: it would load single bytes, and spill 248 registers of 128x128.
        a_upper, a_lower = tl.multiple_of(a_upper, 16), tl.multiple_of(a_lower, 16)
    if FORM.SCALES == BLOCK:
        upper_scales, lower_scales = tl.split(tl.permute(tl.reshape(scale_a, (2, FORM.BLOCK_M // 2)), (1, 0)))
        scale_b += column // SIDE * (experts.K // SIDE)
        factor_b = tl.load(scale_b)
        upper_factor = tl.load(upper_scales) * factor_b
        lower_factor = tl.load(lower_scales) * factor_b
    for k in range(0, experts.K, FORM.BLOCK_K):
        upper_tile = _load_a(a_upper, row, k, experts.K, FORM)
        lower_tile = _load_a(a_lower, row + FORM.BLOCK_M // 2, k, experts.K, FORM)
        b_tile = _load_b(experts, expert, k, column, FORM)
        if FORM.SCALES == BLOCK:
            upper = add_now(upper, tl.dot(upper_tile, b_tile), upper_factor[:, None])
            lower = add_now(lower, tl.dot(lower_tile, b_tile), lower_factor[:, None])
            at = tl.minimum(k + FORM.BLOCK_K, experts.K - 1) // SIDE
            factor_b = tl.load(scale_b + at)
            upper_factor = tl.load(upper_scales + at) * factor_b
            lower_factor = tl.load(lower_scales + at) * factor_b
        else:
            upper = add_now(upper, tl.dot(upper_tile, b_tile))
            lower = add_now(lower, tl.dot(lower_tile, b_tile))
    return together(upper, lower)


@triton.jit
def expert_product(a, row, scale_a, experts, expert, column, FORM: tl.constexpr):
    """A tile of A @ B[expert] + bias, fp32 [BLOCK_M, BLOCK_N]: rows of A that begin at the pointers ``a`` [BLOCK_M], or
    with A_TMA, ``a`` a descriptor, those from ``row`` on; the columns from ``column`` on, see ``tile_columns``.

    ``scale_a`` points to each row's first scale [BLOCK_M]. ``row`` and ``a`` may carry the zero of a wait. PARTS, with
    TMA: the upper and the lower half of the rows are multiplied in turn, see ``Tile.in_two_parts``.
    """
    acc = tl.zeros((FORM.BLOCK_N, FORM.BLOCK_M) if FORM.SWAP else (FORM.BLOCK_M, FORM.BLOCK_N), dtype=tl.float32)
    scale_b = experts.scale_b
    if FORM.SCALES == BLOCK:
        scale_b += expert.to(tl.int64) * tl.cdiv(experts.columns, SIDE) * (experts.K // SIDE)
    if FORM.PARTS:
        acc = _product_in_parts(acc, a, row, scale_a, scale_b, experts, expert, column, FORM)
    else:
        for k in range(0, experts.K, FORM.BLOCK_K):
            a_tile = _load_a(a, row, k, experts.K, FORM)
            b_tile = _load_b(experts, expert, k, column, FORM)
            if FORM.SCALES == BLOCK:
                factors = tl.load(scale_a + k // SIDE)[:, None]
                factors = factors * block_scale_b(scale_b, k, experts.K // SIDE, column, experts.columns, FORM)
                acc += tl.dot(b_tile.T, a_tile.T) * factors.T if FORM.SWAP else tl.dot(a_tile, b_tile) * factors
            elif FORM.SWAP:
                acc = add_product(acc, b_tile.T, a_tile.T, FORM.PROMOTE)
            else:
                acc = add_product(acc, a_tile, b_tile, FORM.PROMOTE)
    acc = acc.T if FORM.SWAP else acc
    if FORM.SCALES == ROW:
        acc *= tl.load(scale_a)[:, None]
        acc = scaled_columns(acc, scale_b + expert.to(tl.int64) * experts.columns, column, experts.columns, FORM)
    if experts.bias is not None:
        acc = with_bias(acc, experts.bias + expert.to(tl.int64) * experts.columns, column, experts.columns, FORM)
    return acc


@triton.jit
def store_expert_tile(acc, c, row, end, column, columns, FORM: tl.constexpr, whole=None):
    """Rows of C from ``row`` to ``end`` = acc, or what EPILOGUE makes of it: half as many columns.

    ``whole``, a descriptor of C or None, stores tiles whose rows are all the expert's. Nothing in this launch may read
    them: TMA says when it has read a tile, not when others see it.
    """
    if whole is not None and row + FORM.BLOCK_M <= end:
        store_tile(acc, Output(whole, end, columns), row, column, FORM)
    elif FORM.EPILOGUE == PLAIN:
        put_tile(acc, c, row, column, end, columns)
    else:
        put_tile(gated(acc, FORM), c, row, column // 2, end, columns // 2)


@triton.jit(do_not_specialize=["group_m"])
def grouped_gemm_kernel(
    a, gather, b, c, whole, scale_a, scale_b, bias, offsets, N, K, stride_be, stride_bk, stride_bn, group_m,
    EXPERTS: tl.constexpr, PER: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    A_TMA: tl.constexpr, TMA: tl.constexpr, B_TRANSPOSED: tl.constexpr, HALVES: tl.constexpr, EVEN_K: tl.constexpr,
    SWAP: tl.constexpr, PROMOTE: tl.constexpr, PARTS: tl.constexpr, SCALES: tl.constexpr, EPILOGUE: tl.constexpr,
):  # fmt: skip
    """C [rows, N] = A [rows, K], gathered or not (None), @ B [EXPERTS, K, N] + bias [EXPERTS, N] (or None) of each
    row's expert; with an EPILOGUE C is [rows, N / 2]. ``whole``: see ``store_expert_tile``.
    """
    experts = Experts(b, K, N, stride_be, stride_bk, stride_bn, scale_b, bias)
    FORM: tl.constexpr = known(
        Gemm, BLOCK_M, BLOCK_N, BLOCK_K, TMA, B_TRANSPOSED, EVEN_K, SCALES, PROMOTE, EPILOGUE, HALVES, SWAP, PARTS,
        A_TMA,
    )  # fmt: skip
    tiles_n = tl.cdiv(N, BLOCK_N)
    blocks = row_blocks(offsets, EXPERTS, BLOCK_M)
    for tile in range(tl.program_id(0), tl.max(blocks, axis=0) * tiles_n, tl.num_programs(0)):
        expert, row, end, n = expert_tile(tile, blocks, offsets, tiles_n, group_m, BLOCK_M)
        rows = rows_of(gather, row, end, PER, BLOCK_M)
        scales = scale_a + rows * scales_per_row(K, SCALES) if SCALES else None
        acc = expert_product(a if A_TMA else a + rows * K, row, scales, experts, expert, n * BLOCK_N, FORM)
        store_expert_tile(acc, c, row, end, n * BLOCK_N, N, FORM, whole)
