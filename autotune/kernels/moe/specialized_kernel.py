"""The warp-specialized grouped GEMM, in Gluon, for sm_90: in every program one warp loads tiles by TMA, two groups of
four multiply them. Rows lie as ``grouped_gemm.py`` says, and tiles are walked in its order.

All rows of A are loaded that a tile has, those of the next expert, too, which are not stored.
"""

from __future__ import annotations

from collections import namedtuple

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from autotune.kernels.primitives.gated import PLAIN, activated
from autotune.kernels.primitives.known import known
from autotune.kernels.primitives.specialized import (
    FEW_REGISTERS,
    REGISTERS,
    Form,
    consumer_layout,
    factors_of,
    finished,
    halves,
    load_tile,
    new_order,
    new_ring,
    product,
    store_part,
)
from autotune.kernels.primitives.tiles import swizzle

Experts = namedtuple("Experts", "offsets rows K columns group_m")
"""``offsets`` of their rows, of ``rows`` at most; the columns of each one's B [K, columns]."""

Result = namedtuple("Result", "whole c buffers bias scale_a scale_b")
"""C as a descriptor and as a pointer; scales and biases as ``GroupedOperands`` has them."""

Tile = namedtuple("Tile", "expert row end column")
"""Its first row, the end of its expert's rows, its first column of C."""


@gluon.jit
def _add(a, b):
    return a + b


@gluon.jit
def row_blocks(experts, EXPERTS: gl.constexpr, WARPS: gl.constexpr, FORM: gl.constexpr):
    """``grouped_gemm.row_blocks`` in Gluon: every warp has all of it."""
    COUNT: gl.constexpr = max(32, triton.next_power_of_2(EXPERTS))
    layout: gl.constexpr = gl.BlockedLayout([COUNT // 32], [32], [WARPS], [0])
    each = gl.arange(0, COUNT, layout=layout)
    begin = gl.load(experts.offsets + each, mask=each < EXPERTS, other=0)
    end = gl.load(experts.offsets + each + 1, mask=each < EXPERTS, other=0)
    return gl.associative_scan(gl.cdiv(end - begin, FORM.PARTS * FORM.ROWS), 0, _add)


@gluon.jit
def tile_at(number, blocks, experts, FORM: gl.constexpr):
    """``grouped_gemm.expert_tile`` in Gluon."""
    BLOCK_M: gl.constexpr = FORM.PARTS * FORM.ROWS
    tiles_n = gl.cdiv(experts.columns, FORM.PIECES * FORM.COLUMNS)
    before = blocks * tiles_n <= number
    expert = gl.sum(before.to(gl.int32), axis=0)
    local = number - gl.max(gl.where(before, blocks, 0), axis=0) * tiles_n
    first, end = gl.load(experts.offsets + expert), gl.load(experts.offsets + expert + 1)
    m, n = swizzle(local, gl.cdiv(end - first, BLOCK_M), tiles_n, experts.group_m)
    return Tile(expert, first + m * BLOCK_M, end, n * FORM.COLUMNS)


@gluon.jit
def count_of(blocks, experts, FORM: gl.constexpr):
    return gl.max(blocks, axis=0) * gl.cdiv(experts.columns, FORM.PIECES * FORM.COLUMNS)


@gluon.jit
def produce(a, b, ring, experts, EXPERTS: gl.constexpr, FORM: gl.constexpr):
    blocks = row_blocks(experts, EXPERTS, 1, FORM)
    step = 0
    for number in range(gl.program_id(0), count_of(blocks, experts, FORM), gl.num_programs(0)):
        tile = tile_at(number, blocks, experts, FORM)
        column, depth = tile.column, 0
        if FORM.B_TRANSPOSED:
            column += tile.expert * experts.columns
        else:
            depth = tile.expert * experts.K
        apart = experts.columns // 2
        step = load_tile(a, b, ring, step, tile.row, column, apart, experts.K, FORM, depth)


@gluon.jit
def consume(
    ring, order, result, experts, WHICH: gl.constexpr, EXPERTS: gl.constexpr, WARPS: gl.constexpr,
    SCALES: gl.constexpr, BIAS: gl.constexpr, EPILOGUE: gl.constexpr, FORM: gl.constexpr,
):  # fmt: skip
    """Multiply and store our part of each tile or, in pingpong, every other tile."""
    layout: gl.constexpr = consumer_layout(ring.a.dtype, FORM.COLUMNS)
    wide: gl.constexpr = consumer_layout(ring.a.dtype, FORM.PIECES * FORM.COLUMNS)
    blocks = row_blocks(experts, EXPERTS, WARPS, FORM)
    steps = gl.cdiv(experts.K, FORM.DEPTH)
    width = experts.columns // FORM.PIECES
    count = WHICH if FORM.TURNS == 2 else 0
    PART: gl.constexpr = WHICH if FORM.TURNS == 1 else 0
    programs = gl.num_programs(0)
    first = gl.program_id(0) + count * programs
    for number in range(first, count_of(blocks, experts, FORM), FORM.TURNS * programs):
        tile = tile_at(number, blocks, experts, FORM)
        row, column = tile.row + PART * FORM.ROWS, tile.column
        factors = None
        if SCALES == 3:
            scale_b = result.scale_b + tile.expert.to(gl.int64) * gl.cdiv(experts.columns, 128) * (experts.K // 128)
            given = (result.scale_a, row, experts.rows, scale_b)
            factors = factors_of(*given, column, width, experts.K, wide, FORM)
        rows = row + gl.arange(0, FORM.ROWS, layout=gl.SliceLayout(1, layout))
        columns = column + gl.arange(0, FORM.COLUMNS, layout=gl.SliceLayout(0, layout))
        places = (rows, rows < tile.end, columns, columns < width)
        of_expert = tile.expert.to(gl.int64) * experts.columns
        total = product(ring, order, count, count * steps, steps, factors, WHICH, wide, FORM)
        if EPILOGUE == PLAIN:
            total = finished(total, result, result.scale_a, places, of_expert, SCALES, BIAS)
        else:
            gate, up = halves(total, layout)
            gate = finished(gate, result, result.scale_a, places, of_expert, SCALES, BIAS)
            up = finished(up, result, result.scale_a, places, of_expert + width, SCALES, BIAS)
            total = activated(gate, up, EPILOGUE)
        if row + FORM.ROWS <= tile.end:
            store_part(total, result.whole, result.buffers.index(WHICH), row, column)
        else:
            at = rows.to(gl.int64)[:, None] * width + columns[None, :]
            inside = (rows < tile.end)[:, None] & (columns < width)[None, :]
            gl.store(result.c + at, total.to(result.c.dtype.element_ty), mask=inside)
        count += FORM.TURNS
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["rows", "group_m"])
def specialized_grouped_kernel(
    a, b, whole, result, scale_a, scale_b, bias, offsets, rows, N, K, group_m, EXPERTS: gl.constexpr,
    PARTS: gl.constexpr, TURNS: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr, DEPTH: gl.constexpr,
    STAGES: gl.constexpr, PROMOTE: gl.constexpr, B_TRANSPOSED: gl.constexpr, SCALES: gl.constexpr,
    BIAS: gl.constexpr, EPILOGUE: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """C [rows, N] = A [rows, K] @ B [EXPERTS, K, N] + bias [EXPERTS, N] (or None) of each row's expert; with an
    EPILOGUE C is [rows, N / 2]. ``a``, ``b``, by experts one below the other as it is stored, and ``whole``, of C, are
    descriptors.
    """
    PIECES: gl.constexpr = 1 if EPILOGUE == PLAIN else 2
    FORM: gl.constexpr = known(Form, PARTS, TURNS, ROWS, COLUMNS, DEPTH, STAGES, PROMOTE, B_TRANSPOSED, PIECES)
    experts = Experts(offsets, rows, K, N, group_m)
    ring = new_ring(a, b, FORM)
    order = new_order(ring, FORM)
    buffers = gl.allocate_shared_memory(whole.dtype, [2, ROWS, whole.block_type.shape[1]], whole.layout)
    out = Result(whole, result, buffers, bias, scale_a, scale_b)
    gl.warp_specialize(
        [
            (consume, (ring, order, out, experts, 0, EXPERTS, num_warps, SCALES, BIAS, EPILOGUE, FORM)),
            (consume, (ring, order, out, experts, 1, EXPERTS, num_warps, SCALES, BIAS, EPILOGUE, FORM)),
            (produce, (a, b, ring, experts, EXPERTS, FORM)),
        ],
        [num_warps, 1],
        [REGISTERS, FEW_REGISTERS],
    )
