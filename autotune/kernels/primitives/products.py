"""The dot products of a GEMM tile: its operands' loads, the sums of its steps, their promotion and scales."""

from __future__ import annotations

import triton
import triton.language as tl

from autotune import dtypes
from autotune.heap.device import compiles_for_cuda
from autotune.kernels.primitives.gated import halves_of, loaded_columns, side_by_side
from autotune.kernels.primitives.scales import BLOCK, NO_SCALES, SIDE, block_scale_b

WGMMA_ROWS = tl.constexpr(dtypes.WGMMA_ROWS)


@triton.jit
def load_a(a, row, rows, pitch, k, end_k, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, TMA: tl.constexpr):
    """A[row : row + BLOCK_M, k : k + BLOCK_K], zero from ``end_k`` on; see ``accumulate``."""
    if TMA:
        tile = a.load([row, k])
    else:
        wide = tl.minimum(row + tl.arange(0, BLOCK_M), rows - 1).to(tl.int64)
        ks = k + tl.arange(0, BLOCK_K)
        tile = tl.load(a + wide[:, None] * pitch + ks[None, :], mask=(ks < end_k)[None, :], other=0.0)
    return tile


@triton.jit
def load_b_by_tma(
    b, k, column, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, B_TRANSPOSED: tl.constexpr, HALVES: tl.constexpr
):
    """A step of B through its descriptor. With HALVES that is [2, columns / 2, K]: both halves in one load. Where B is
    stored row by row, halves are two loads, see ``accumulate_halves``.
    """
    if HALVES:
        tile = tl.reshape(b.load([0, column // 2, k]), (BLOCK_N, BLOCK_K)).T
    elif B_TRANSPOSED:
        tile = b.load([column, k]).T
    else:
        tile = b.load([k, column])
    return tile


@triton.jit
def load_b(
    b, columns, k, end_k, column, stride_bk, stride_bn,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TMA: tl.constexpr, B_TRANSPOSED: tl.constexpr,
    HALVES: tl.constexpr = 0,
):  # fmt: skip
    """B[k : k + BLOCK_K, column : column + BLOCK_N], zero from ``end_k`` on; see ``accumulate``."""
    if TMA:
        tile = load_b_by_tma(b, k, column, BLOCK_N, BLOCK_K, B_TRANSPOSED, HALVES)
    else:
        ks = k + tl.arange(0, BLOCK_K)
        wide = loaded_columns(column, columns, BLOCK_N, HALVES).to(tl.int64)
        pointers = b + ks.to(tl.int64)[:, None] * stride_bk + wide[None, :] * stride_bn
        tile = tl.load(pointers, mask=(ks < end_k)[:, None], other=0.0)
    return tile


@triton.jit
def add_product(acc, a_tile, b_tile, PROMOTE: tl.constexpr):
    """Acc + one step's product; PROMOTE: see ``GemmKnobs.promoted``.

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
def accumulate_parts(
    acc, a, a_row, b, column, first_k, end_k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    B_TRANSPOSED: tl.constexpr, HALVES: tl.constexpr,
):  # fmt: skip
    """``accumulate`` where the upper and the lower half of a tile's rows are multiplied in turn."""
    upper, lower = apart(acc, BLOCK_M, BLOCK_N)
    for k in range(first_k, end_k, BLOCK_K):
        a_upper = a.load([a_row, k])
        a_lower = a.load([a_row + BLOCK_M // 2, k])
        b_tile = load_b_by_tma(b, k, column, BLOCK_N, BLOCK_K, B_TRANSPOSED, HALVES)
        upper = add_now(upper, tl.dot(a_upper, b_tile))
        lower = add_now(lower, tl.dot(a_lower, b_tile))
    return together(upper, lower, BLOCK_M, BLOCK_N)


@triton.jit
def accumulate_scaled_parts(
    acc, a, a_row, a_rows, a_pitch, b, column, first_k, end_k, scale_a, scale_b,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, B_TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """``accumulate_parts`` with block scales, loaded a step ahead; a tile is at most one block wide."""
    upper, lower = apart(acc, BLOCK_M, BLOCK_N)
    pitch = a_pitch // SIDE
    rows = a_row + tl.arange(0, BLOCK_M // 2)
    # int32 is enough, an A with 2**31 of them has 256 GiB, and 64 bits would take registers that are all in use.
    of_upper = tl.minimum(rows, a_rows - 1) * pitch
    of_lower = tl.minimum(rows + BLOCK_M // 2, a_rows - 1) * pitch
    of_b = scale_b + column // SIDE * pitch
    at = tl.minimum(first_k, end_k - 1) // SIDE
    factor_b = tl.load(of_b + at)
    upper_factor = tl.load(scale_a + at + of_upper) * factor_b
    lower_factor = tl.load(scale_a + at + of_lower) * factor_b
    for k in range(first_k, end_k, BLOCK_K):
        at = tl.minimum(k + BLOCK_K, end_k - 1) // SIDE
        factor_b = tl.load(of_b + at)
        next_upper = tl.load(scale_a + at + of_upper)
        next_lower = tl.load(scale_a + at + of_lower)
        a_upper = a.load([a_row, k])
        a_lower = a.load([a_row + BLOCK_M // 2, k])
        b_tile = load_b_by_tma(b, k, column, BLOCK_N, BLOCK_K, B_TRANSPOSED, False)
        upper = add_now(upper, tl.dot(a_upper, b_tile), upper_factor[:, None])
        lower = add_now(lower, tl.dot(a_lower, b_tile), lower_factor[:, None])
        upper_factor = next_upper * factor_b
        lower_factor = next_lower * factor_b
    return together(upper, lower, BLOCK_M, BLOCK_N)


@triton.jit
def accumulate_halves(
    acc, a, a_row, b, b_columns, column, first_k, end_k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """``accumulate`` where gate and up are halves of the rows of B's storage: two tiles of TMA, each with its sum."""
    gate, up = halves_of(acc, BLOCK_M, BLOCK_N)
    for k in range(first_k, end_k, BLOCK_K):
        a_tile = a.load([a_row, k])
        gate = tl.dot(a_tile, b.load([k, column // 2]), gate, input_precision="ieee")
        up = tl.dot(a_tile, b.load([k, b_columns // 2 + column // 2]), up, input_precision="ieee")
    return side_by_side(gate, up, BLOCK_M, BLOCK_N)


@triton.jit
def apart(tile, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    return tl.split(tl.permute(tl.reshape(tile, (2, BLOCK_M // 2, BLOCK_N)), (1, 2, 0)))


@triton.jit
def together(upper, lower, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    return tl.reshape(tl.permute(tl.join(upper, lower), (2, 0, 1)), (BLOCK_M, BLOCK_N))


@triton.jit
def accumulate(
    acc, a, a_row, a_rows, a_pitch, b, b_columns, column, stride_bk, stride_bn, first_k, end_k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    TMA: tl.constexpr, B_TRANSPOSED: tl.constexpr, EVEN_K: tl.constexpr,
    scale_a=None, scale_b=None, SCALES: tl.constexpr = NO_SCALES, PROMOTE: tl.constexpr = None,
    HALVES: tl.constexpr = 0,
):  # fmt: skip
    """Add A[a_row : a_row + BLOCK_M, first_k : end_k] @ B[first_k : end_k, column : column + BLOCK_N] to acc.

    acc is [BLOCK_M, BLOCK_N] fp32, A row-major with ``a_rows`` rows of ``a_pitch`` elements, B with ``b_columns``
    columns and any strides (B_TRANSPOSED: its storage is [N, K]). ``a`` and ``b`` are tensor descriptors with TMA,
    ``a`` of a tile's rows or of half of them (``GemmKnobs.in_two_parts``), pointers without. Rows and columns beyond
    the edge are clamped or zero: they end up in parts of the tile that are not stored. ``first_k`` is a multiple of
    BLOCK_K, and so is ``end_k`` unless it is the end of K; EVEN_K says that it always is. Each step of scales by blocks
    is multiplied by them; the other SCALES are the caller's. PROMOTE: see ``add_product``.
    """
    PARTS: tl.constexpr = TMA and a.block_shape[0] < BLOCK_M
    if PARTS and SCALES == BLOCK:
        acc = accumulate_scaled_parts(
            acc, a, a_row, a_rows, a_pitch, b, column, first_k, end_k, scale_a, scale_b,
            BLOCK_M, BLOCK_N, BLOCK_K, B_TRANSPOSED,
        )  # fmt: skip
    elif PARTS:
        acc = accumulate_parts(
            acc, a, a_row, b, column, first_k, end_k, BLOCK_M, BLOCK_N, BLOCK_K, B_TRANSPOSED, HALVES
        )
    elif TMA and HALVES and not B_TRANSPOSED:
        acc = accumulate_halves(acc, a, a_row, b, b_columns, column, first_k, end_k, BLOCK_M, BLOCK_N, BLOCK_K)
    elif SCALES == BLOCK:
        rows = tl.minimum(a_row + tl.arange(0, BLOCK_M), a_rows - 1).to(tl.int64)
        for k in range(first_k, end_k, BLOCK_K):
            a_tile = load_a(a, a_row, a_rows, a_pitch, k, end_k, BLOCK_M, BLOCK_K, TMA)
            b_tile = load_b(
                b, b_columns, k, end_k, column, stride_bk, stride_bn, BLOCK_N, BLOCK_K, TMA, B_TRANSPOSED, HALVES
            )
            factors = tl.load(scale_a + rows * (a_pitch // SIDE) + k // SIDE)[:, None]
            factors = factors * block_scale_b(scale_b, k, a_pitch // SIDE, column, b_columns, BLOCK_N, HALVES)
            acc += tl.dot(a_tile, b_tile) * factors
    elif TMA:
        for k in range(first_k, end_k, BLOCK_K):
            a_tile = a.load([a_row, k])
            b_tile = load_b_by_tma(b, k, column, BLOCK_N, BLOCK_K, B_TRANSPOSED, HALVES)
            acc = add_product(acc, a_tile, b_tile, PROMOTE)
    else:
        rows = tl.minimum(a_row + tl.arange(0, BLOCK_M), a_rows - 1).to(tl.int64)
        columns = loaded_columns(column, b_columns, BLOCK_N, HALVES)
        ks = first_k + tl.arange(0, BLOCK_K)
        a_pointers = a + rows[:, None] * a_pitch + ks[None, :]
        b_pointers = b + ks.to(tl.int64)[:, None] * stride_bk + columns.to(tl.int64)[None, :] * stride_bn
        for k in range(first_k, end_k, BLOCK_K):
            if EVEN_K:
                a_tile = tl.load(a_pointers)
                b_tile = tl.load(b_pointers)
            else:
                inside = tl.arange(0, BLOCK_K) < end_k - k
                a_tile = tl.load(a_pointers, mask=inside[None, :], other=0.0)
                b_tile = tl.load(b_pointers, mask=inside[:, None], other=0.0)
            acc = add_product(acc, a_tile, b_tile, PROMOTE)
            a_pointers += BLOCK_K
            b_pointers += BLOCK_K * stride_bk
    return acc
