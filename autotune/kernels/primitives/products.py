"""The dot products of a GEMM tile: its operands' loads, the sums of its steps, their promotion and scales."""

from __future__ import annotations

from collections import namedtuple

import triton
import triton.language as tl

from autotune import dtypes
from autotune.heap.device import compiles_for_cuda
from autotune.kernels.primitives.gated import left_and_right, loaded_columns, side_by_side
from autotune.kernels.primitives.known import SPECIALIZED
from autotune.kernels.primitives.scales import BLOCK, SIDE, block_scale_b, scaled
from autotune.kernels.primitives.splits import join_splits, split_range

WGMMA_ROWS = tl.constexpr(dtypes.WGMMA_ROWS)

Operands = namedtuple("Operands", "a rows K b columns stride_bk stride_bn scale_a scale_b", defaults=(None, None))
"""A [rows, K], row-major, and B [K, columns] of any strides: tensor descriptors with TMA, pointers without. A's has a
tile's rows, or half of them (``Tile.in_two_parts``). What is beyond the edge begins anew or is zero.
"""


@triton.jit
def loaded_rows(row, rows, BLOCK_M: tl.constexpr):
    """The rows [BLOCK_M] of a matrix from ``row`` on; beyond its end, where results are not stored, its first ones: the
    last one in place of them all would be one address that every program reads.
    """
    return (row + tl.arange(0, BLOCK_M)) % rows


@triton.jit
def load_a(operands, row, k, end_k, FORM: tl.constexpr):
    """A[row : row + BLOCK_M, k : k + BLOCK_K], zero from ``end_k`` on; see ``accumulate``."""
    if FORM.TMA:
        tile = operands.a.load([row, k])
    else:
        wide = loaded_rows(row, operands.rows, FORM.BLOCK_M).to(tl.int64)
        ks = k + tl.arange(0, FORM.BLOCK_K)
        tile = tl.load(operands.a + wide[:, None] * operands.K + ks[None, :], mask=(ks < end_k)[None, :], other=0.0)
    return tile


@triton.jit
def load_b_by_tma(b, k, column, FORM: tl.constexpr):
    """A step of B through its descriptor. With HALVES that is [2, columns / 2, K]: both halves in one load. Where B is
    stored row by row, halves are two loads, see ``accumulate_halves``.
    """
    if FORM.HALVES:
        tile = tl.reshape(b.load([0, column // 2, k]), (FORM.BLOCK_N, FORM.BLOCK_K)).T
    elif FORM.B_TRANSPOSED:
        tile = b.load([column, k]).T
    else:
        tile = b.load([k, column])
    return tile


@triton.jit
def load_b(operands, k, end_k, column, FORM: tl.constexpr):
    """B[k : k + BLOCK_K, column : column + BLOCK_N], zero from ``end_k`` on; see ``accumulate``."""
    if FORM.TMA:
        tile = load_b_by_tma(operands.b, k, column, FORM)
    else:
        ks = k + tl.arange(0, FORM.BLOCK_K)
        wide = loaded_columns(column, operands.columns, FORM).to(tl.int64)
        pointers = operands.b + ks.to(tl.int64)[:, None] * operands.stride_bk + wide[None, :] * operands.stride_bn
        tile = tl.load(pointers, mask=(ks < end_k)[:, None], other=0.0)
    return tile


@triton.jit
def add_product(acc, a_tile, b_tile, PROMOTE: tl.constexpr):
    """Acc + one step's product; PROMOTE: see ``Tile.promoted``.

    Where sm_90's wgmma takes the tile, a step that is short enough starts from zero and is added as a whole. Told to
    promote, Triton would wait after each of its instructions, 32 of K, instead of once.
    """
    if PROMOTE is not None and acc.shape[0] >= WGMMA_ROWS and a_tile.shape[1] <= PROMOTE:
        acc += tl.dot(a_tile, b_tile, input_precision="ieee")
    else:
        acc = tl.dot(a_tile, b_tile, acc, input_precision="ieee", max_num_imprecise_acc=PROMOTE)
    return acc


@triton.jit
def add_now(acc, product, factor=None):
    """Acc + product, or product times factor, before what follows in the source: the next product may take this one's
    registers. Left to itself, the compiler issues the next product first; where registers are scarce, it then spills.
    """
    if not compiles_for_cuda():
        acc += product if factor is None else product * factor
    elif factor is None:
        acc = tl.inline_asm_elementwise(
            "add.f32 $0, $1, $2;", "=f,f,f", [acc, product], dtype=tl.float32, is_pure=False, pack=1
        )
    else:
        acc = tl.inline_asm_elementwise(
            "fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f", [product, factor, acc], dtype=tl.float32, is_pure=False, pack=1
        )
    return acc


@triton.jit
def accumulate_parts(acc, operands, row, column, first_k, end_k, FORM: tl.constexpr):
    """``accumulate`` where the upper and the lower half of a tile's rows are multiplied in turn. Scales by blocks are
    loaded a step ahead; a tile is then at most one block wide.
    """
    upper, lower = apart(acc)
    if FORM.SCALES == BLOCK:
        pitch = operands.K // SIDE
        rows = row + tl.arange(0, FORM.BLOCK_M // 2)
        # int32 is enough, an A with 2**31 of them has 256 GiB, and 64 bits would take registers that are all in use.
        of_upper = tl.minimum(rows, operands.rows - 1) * pitch
        of_lower = tl.minimum(rows + FORM.BLOCK_M // 2, operands.rows - 1) * pitch
        of_b = operands.scale_b + column // SIDE * pitch
        at = tl.minimum(first_k, end_k - 1) // SIDE
        factor_b = tl.load(of_b + at)
        upper_factor = tl.load(operands.scale_a + at + of_upper) * factor_b
        lower_factor = tl.load(operands.scale_a + at + of_lower) * factor_b
    for k in range(first_k, end_k, FORM.BLOCK_K):
        if FORM.SCALES == BLOCK:
            at = tl.minimum(k + FORM.BLOCK_K, end_k - 1) // SIDE
            factor_b = tl.load(of_b + at)
            next_upper = tl.load(operands.scale_a + at + of_upper)
            next_lower = tl.load(operands.scale_a + at + of_lower)
        a_upper = operands.a.load([row, k])
        a_lower = operands.a.load([row + FORM.BLOCK_M // 2, k])
        b_tile = load_b_by_tma(operands.b, k, column, FORM)
        if FORM.SCALES == BLOCK:
            upper = add_now(upper, tl.dot(a_upper, b_tile), upper_factor[:, None])
            lower = add_now(lower, tl.dot(a_lower, b_tile), lower_factor[:, None])
            upper_factor = next_upper * factor_b
            lower_factor = next_lower * factor_b
        else:
            upper = add_now(upper, tl.dot(a_upper, b_tile))
            lower = add_now(lower, tl.dot(a_lower, b_tile))
    return together(upper, lower)


@triton.jit
def accumulate_halves(acc, operands, row, column, first_k, end_k, FORM: tl.constexpr):
    """``accumulate`` where gate and up are halves of the rows of B's storage: two tiles of TMA, each with its sum."""
    gate, up = left_and_right(acc)
    for k in range(first_k, end_k, FORM.BLOCK_K):
        a_tile = operands.a.load([row, k])
        gate = tl.dot(a_tile, operands.b.load([k, column // 2]), gate, input_precision="ieee")
        b_up = operands.b.load([k, operands.columns // 2 + column // 2])
        up = tl.dot(a_tile, b_up, up, input_precision="ieee")
    return side_by_side(gate, up)


@triton.jit
def apart(tile):
    return tl.split(tl.permute(tl.reshape(tile, (2, tile.shape[0] // 2, tile.shape[1])), (1, 2, 0)))


@triton.jit
def together(upper, lower):
    return tl.reshape(tl.permute(tl.join(upper, lower), (2, 0, 1)), (2 * upper.shape[0], upper.shape[1]))


@triton.jit
def accumulate(acc, operands, row, column, first_k, end_k, FORM: tl.constexpr):
    """Add A[row : row + BLOCK_M, first_k : end_k] @ B[first_k : end_k, column : column + BLOCK_N] to acc, fp32.

    Rows and columns beyond the edge are others or zero: they end up in parts of the tile that are not stored.
    ``first_k`` is a multiple of BLOCK_K, and so is ``end_k`` unless it is the end of K. Scales by blocks are multiplied
    in at every step; the other SCALES are the caller's.
    """
    PARTS: tl.constexpr = FORM.TMA and operands.a.block_shape[0] < FORM.BLOCK_M
    if PARTS:
        acc = accumulate_parts(acc, operands, row, column, first_k, end_k, FORM)
    elif FORM.TMA and FORM.HALVES and not FORM.B_TRANSPOSED:
        acc = accumulate_halves(acc, operands, row, column, first_k, end_k, FORM)
    elif FORM.SCALES == BLOCK:
        rows = loaded_rows(row, operands.rows, FORM.BLOCK_M).to(tl.int64)
        for k in range(first_k, end_k, FORM.BLOCK_K):
            a_tile = load_a(operands, row, k, end_k, FORM)
            b_tile = load_b(operands, k, end_k, column, FORM)
            pitch = operands.K // SIDE
            factors = tl.load(operands.scale_a + rows * pitch + k // SIDE)[:, None]
            factors = factors * block_scale_b(operands.scale_b, k, pitch, column, operands.columns, FORM)
            acc += tl.dot(a_tile, b_tile) * factors
    elif FORM.TMA:
        for k in tl.range(first_k, end_k, FORM.BLOCK_K, warp_specialize=FORM.TMA == SPECIALIZED):
            a_tile = operands.a.load([row, k])
            b_tile = load_b_by_tma(operands.b, k, column, FORM)
            acc = add_product(acc, a_tile, b_tile, FORM.PROMOTE)
    else:
        rows = loaded_rows(row, operands.rows, FORM.BLOCK_M).to(tl.int64)
        columns = loaded_columns(column, operands.columns, FORM)
        ks = first_k + tl.arange(0, FORM.BLOCK_K)
        a_pointers = operands.a + rows[:, None] * operands.K + ks[None, :]
        b_rows = ks.to(tl.int64)[:, None] * operands.stride_bk
        b_pointers = operands.b + b_rows + columns.to(tl.int64)[None, :] * operands.stride_bn
        for k in range(first_k, end_k, FORM.BLOCK_K):
            if FORM.EVEN_K:
                a_tile = tl.load(a_pointers)
                b_tile = tl.load(b_pointers)
            else:
                inside = tl.arange(0, FORM.BLOCK_K) < end_k - k
                a_tile = tl.load(a_pointers, mask=inside[None, :], other=0.0)
                b_tile = tl.load(b_pointers, mask=inside[:, None], other=0.0)
            acc = add_product(acc, a_tile, b_tile, FORM.PROMOTE)
            a_pointers += FORM.BLOCK_K
            b_pointers += FORM.BLOCK_K * operands.stride_bk
    return acc


@triton.jit
def tile_product(operands, row, column, first_k, end_k, FORM: tl.constexpr):
    """A tile of A @ B over a range of K, times its scales: fp32 [BLOCK_M, BLOCK_N]."""
    acc = tl.zeros((FORM.BLOCK_M, FORM.BLOCK_N), dtype=tl.float32)
    acc = accumulate(acc, operands, row, column, first_k, end_k, FORM)
    return scaled(acc, operands, row, operands.rows, column, FORM)


@triton.jit
def split_product(operands, row, column, partials, tickets, tile, split, SPLITS: tl.constexpr, FORM: tl.constexpr):
    """This split's ``tile_product`` of all of K, or what ``join_splits`` makes of it; and whether it is whole.

    ``tile``: its number in ``partials`` and ``tickets``.
    """
    first_k, end_k = split_range(split, operands.K, SPLITS, FORM.BLOCK_K)
    acc = tile_product(operands, row, column, first_k, end_k, FORM)
    whole = True
    if SPLITS > 1:
        acc, whole = join_splits(acc, partials, tickets, tile, split, SPLITS)
    return acc, whole
