"""Warp specialization of a GEMM on sm_90, in Gluon: a producer warp loads by TMA, two consumer warp groups multiply.

C = A B, A [rows, K], B [K, columns], stored so or transposed. The producer fills a ring of buffers. Cooperative
consumers multiply half of a tile's rows each; in pingpong each has every other tile to itself, and stores it while the
other one multiplies.
"""

from __future__ import annotations

from collections import namedtuple

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from autotune.heap import device as heap

# Triton 3.9 has the first name, 3.6 the other.
copy_async = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
load_box = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store_box = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
reinterpret = getattr(gl.shared_memory_descriptor, "reinterpret", None) or gl.shared_memory_descriptor._reinterpret

REGISTERS = gl.constexpr(232)
FEW_REGISTERS = gl.constexpr(40)
"""Registers of a consumer's thread and of any other: 168 on average over twelve warps, the last of which idle."""

FEWER_REGISTERS = gl.constexpr(216)
MORE_REGISTERS = gl.constexpr(72)
"""Likewise where those that send would spill with 40."""


Ring = namedtuple("Ring", "a b empty ready")
"""Buffers of A [stages · parts, rows, depth] and of B [stages · pieces, columns, depth] or, as B is stored, [stages ·
pieces, depth, columns], and their barriers, [stages, 1].
"""

Form = namedtuple("Form", "PARTS TURNS ROWS COLUMNS DEPTH STAGES PROMOTE B_TRANSPOSED PIECES")
"""A tile has PARTS · ROWS rows, each part those of one consumer; TURNS is 2 in pingpong, else 1. DEPTH: of a step.
PROMOTE: each step's product is added up in fp32 registers. COLUMNS are those of C; of B there are PIECES times as many:
the gate's, and up's.
"""

Factors = namedtuple("Factors", "rows columns up")
"""The first scales by blocks of 128 of K: pointers to those of a consumer's rows [ROWS], and to that of its columns,
which all lie in one block; of gate and up one each. A step, of 128 elements, has one of each.
"""


@gluon.jit
def factors_of(of_rows, row, rows, scale_b, column, apart, depth, layout: gl.constexpr, FORM: gl.constexpr):
    """The factors of a consumer's rows, from ``row`` on of A's ``rows``, of B's columns from ``column`` on, and of
    those of up, ``apart`` from them.
    """
    pitch = depth // 128
    mine = gl.minimum(row + gl.arange(0, FORM.ROWS, layout=gl.SliceLayout(1, layout)), rows - 1)
    return Factors(of_rows + mine * pitch, scale_b + column // 128 * pitch, scale_b + (column + apart) // 128 * pitch)


@gluon.jit
def new_ring(a_desc, b_desc, FORM: gl.constexpr):
    STAGES: gl.constexpr = FORM.STAGES
    a = gl.allocate_shared_memory(a_desc.dtype, [STAGES * FORM.PARTS, FORM.ROWS, FORM.DEPTH], a_desc.layout)
    box: gl.constexpr = b_desc.block_type.shape
    b = gl.allocate_shared_memory(b_desc.dtype, [STAGES * FORM.PIECES, box[0], box[1]], b_desc.layout)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(empty.index(i), count=FORM.PARTS)
        mbarrier.init(ready.index(i), count=1)
    return Ring(a, b, empty, ready)


@gluon.jit
def new_order(ring, FORM: gl.constexpr):
    """Barriers by which consumers in pingpong run their main loops one after the other.

    Cooperative ones get the ring's, which they do not use. Of barriers that nothing uses the compiler gives the memory
    to the buffers of the result: undefined behaviour. A GPU that several processes shared overwrote 16 bytes of a
    result now and then (2 H100, 2026-11-27).
    """
    order = ring.empty
    if FORM.TURNS == 2:
        order = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        for i in gl.static_range(2):
            mbarrier.init(order.index(i), count=1)
    return order


@gluon.jit
def _emptied(ring, step, FORM: gl.constexpr):
    """The stage of a step, once it is empty."""
    stage = step % FORM.STAGES
    mbarrier.wait(ring.empty.index(stage), ((step // FORM.STAGES) & 1) ^ 1)
    return stage


@gluon.jit
def open_stage(a_desc, ring, step, FORM: gl.constexpr):
    """Wait until a step's stage is empty, and have its barrier expect A and B."""
    LINES: gl.constexpr = FORM.PARTS * FORM.ROWS + FORM.PIECES * FORM.COLUMNS
    BYTES: gl.constexpr = LINES * FORM.DEPTH * a_desc.dtype.primitive_bitwidth // 8
    mbarrier.expect(ring.ready.index(_emptied(ring, step, FORM)), BYTES)


@gluon.jit
def empty_step(ring, step, FORM: gl.constexpr):
    """A step without A and B, which says that something else is there."""
    mbarrier.arrive(ring.ready.index(_emptied(ring, step, FORM)), count=1)


@gluon.jit
def load_rows(a_desc, ring, step, row, k, FORM: gl.constexpr):
    """A step of A, in PARTS boxes."""
    stage = step % FORM.STAGES
    for part in gl.static_range(FORM.PARTS):
        place = ring.a.index(stage * FORM.PARTS + part)
        load_box(a_desc, [row + part * FORM.ROWS, k], ring.ready.index(stage), place)


@gluon.jit
def load_columns(b_desc, ring, step, column, apart, k, FORM: gl.constexpr):
    """A step of B, in PIECES boxes, ``apart`` columns from each other."""
    stage = step % FORM.STAGES
    for piece in gl.static_range(FORM.PIECES):
        place, at = ring.b.index(stage * FORM.PIECES + piece), column + piece * apart
        if FORM.B_TRANSPOSED:
            load_box(b_desc, [at, k], ring.ready.index(stage), place)
        else:
            load_box(b_desc, [k, at], ring.ready.index(stage), place)


@gluon.jit
def load_tile(a_desc, b_desc, ring, step, row, column, apart, K, FORM: gl.constexpr, b_k=0, begin=0):
    """The producer's part of a tile: steps of A from ``begin`` to K and, ``b_k`` further on, of B. Returns the number
    of the next step.
    """
    for k in range(begin, K, FORM.DEPTH):
        open_stage(a_desc, ring, step, FORM)
        load_rows(a_desc, ring, step, row, k, FORM)
        load_columns(b_desc, ring, step, column, apart, b_k + k, FORM)
        step += 1
    return step


@gluon.jit
def await_step(ring, step, FORM: gl.constexpr):
    """The stage of a step, once it is full."""
    mbarrier.wait(ring.ready.index(step % FORM.STAGES), (step // FORM.STAGES) & 1)
    return step % FORM.STAGES


@gluon.jit
def _multiply(ring, stage, PART: gl.constexpr, acc, use_acc: gl.constexpr, FORM: gl.constexpr):
    b = ring.b
    if FORM.PIECES == 2:  # one behind the other
        WIDE: gl.constexpr = 2 * FORM.COLUMNS
        SHAPE: gl.constexpr = [WIDE, FORM.DEPTH] if FORM.B_TRANSPOSED else [FORM.DEPTH, WIDE]
        b = reinterpret(b, b.dtype, [FORM.STAGES, SHAPE[0], SHAPE[1]], b.layout)
    b = b.index(stage)
    if FORM.B_TRANSPOSED:
        b = b.permute((1, 0))
    return warpgroup_mma(ring.a.index(stage * FORM.PARTS + PART), b, acc, use_acc=use_acc, is_async=True)


@gluon.jit
def _take_turn(order, tile, WHICH: gl.constexpr, FORM: gl.constexpr):
    if FORM.TURNS == 2:  # a wait by parity would take the phase after the next for its own
        mbarrier.wait(order.index(WHICH), ((tile // 2) & 1) ^ (1 - WHICH))


@gluon.jit
def _factor(factors, step, layout: gl.constexpr, FORM: gl.constexpr):
    """A step's scales [ROWS, 1], of gate and up [ROWS, 2 COLUMNS]; None without ``factors``. To be loaded while the
    step is multiplied.
    """
    factor = factors
    if factors is not None:
        if FORM.PIECES == 1:
            factor = (gl.load(factors.rows + step) * gl.load(factors.columns + step))[:, None]
        else:
            columns = gl.arange(0, 2 * FORM.COLUMNS, layout=gl.SliceLayout(0, layout))
            both = gl.where(columns < FORM.COLUMNS, gl.load(factors.columns + step), gl.load(factors.up + step))
            factor = gl.load(factors.rows + step)[:, None] * both[None, :]
    return factor


@gluon.jit
def _added(total, taken, factor):
    if factor is None:
        total += taken
    else:
        total += taken * factor
    return total


@gluon.jit
def product(ring, order, tile, begin, steps, factors, WHICH: gl.constexpr, layout: gl.constexpr, FORM: gl.constexpr):
    """A consumer's rows of a tile: fp32 [ROWS, PIECES · COLUMNS], gate and up side by side. ``begin`` is the number of
    its first step, ``tile`` that of the tile among this program's. ``factors``: None unless scales are by blocks, whose
    steps are promoted.
    """
    PART: gl.constexpr = WHICH if FORM.TURNS == 1 else 0
    _take_turn(order, tile, WHICH, FORM)
    zero = gl.zeros((FORM.ROWS, FORM.PIECES * FORM.COLUMNS), dtype=gl.float32, layout=layout)
    total = zero
    if FORM.PROMOTE:  # two products in flight; ptxas serialises them where one stays so over the loop's end
        taken, other = zero, zero
        for s in range(0, steps - 1, 2):
            first = await_step(ring, begin + s, FORM)
            even = _multiply(ring, first, PART, taken, False, FORM)
            of_even = _factor(factors, s, layout, FORM)
            second = await_step(ring, begin + s + 1, FORM)
            odd = _multiply(ring, second, PART, other, False, FORM)
            of_odd = _factor(factors, s + 1, layout, FORM)
            taken = warpgroup_mma_wait(num_outstanding=1, deps=[even])
            mbarrier.arrive(ring.empty.index(first), count=1)
            total = _added(total, taken, of_even)
            other = warpgroup_mma_wait(num_outstanding=0, deps=[odd])
            mbarrier.arrive(ring.empty.index(second), count=1)
            total = _added(total, other, of_odd)
        if steps % 2 == 1:
            last = await_step(ring, begin + steps - 1, FORM)
            even = _multiply(ring, last, PART, taken, False, FORM)
            of_even = _factor(factors, steps - 1, layout, FORM)
            total = _added(total, warpgroup_mma_wait(num_outstanding=0, deps=[even]), of_even)
            mbarrier.arrive(ring.empty.index(last), count=1)
        if FORM.TURNS == 2:
            mbarrier.arrive(order.index(1 - WHICH), count=1)
    else:
        acc = warpgroup_mma_init(zero)
        for s in range(steps):
            stage = await_step(ring, begin + s, FORM)
            acc = _multiply(ring, stage, PART, acc, True, FORM)
            acc = warpgroup_mma_init(warpgroup_mma_wait(num_outstanding=1, deps=[acc]))
            mbarrier.arrive(ring.empty.index((begin + s + FORM.STAGES - 1) % FORM.STAGES), count=1, pred=s > 0)
        if FORM.TURNS == 2:
            mbarrier.arrive(order.index(1 - WHICH), count=1)
        total = warpgroup_mma_wait(num_outstanding=0, deps=[acc])
        mbarrier.arrive(ring.empty.index((begin + steps - 1) % FORM.STAGES), count=1)
    return total


@gluon.jit
def halves(value, layout: gl.constexpr):
    """Both halves of the columns, without a word between threads."""
    left, right = gl.split(gl.permute(gl.reshape(value, (value.shape[0], 2, value.shape[1] // 2)), (0, 2, 1)))
    return gl.convert_layout(left, layout, assert_trivial=True), gl.convert_layout(right, layout, assert_trivial=True)


@gluon.jit
def finished(total, out, of_rows, places, at, SCALES: gl.constexpr, BIAS: gl.constexpr):
    """Sums of B's columns from ``at`` on with their scales and bias; ``places`` are rows, which of them exist, columns,
    and which of these do.
    """
    rows, in_rows, columns, in_columns = places
    if SCALES == 1:
        total *= gl.load(out.scale_a) * gl.load(out.scale_b)
    if SCALES == 2:
        total *= gl.load(of_rows + rows, mask=in_rows, other=0.0)[:, None]
        total *= gl.load(out.scale_b + at + columns, mask=in_columns, other=0.0)[None, :]
    if BIAS:
        total += gl.load(out.bias + at + columns, mask=in_columns, other=0.0).to(gl.float32)[None, :]
    return total


@gluon.jit
def store_part(value, c_desc, buffer, row, column):
    """C[row : …, column : …] = value, by TMA, in one box or in two; the last goes on behind the next main loop."""
    COLUMNS: gl.constexpr = c_desc.block_type.shape[1]
    if value.shape[1] == COLUMNS:
        _store_box(value, c_desc, buffer, row, column)
    else:
        left, right = gl.split(gl.permute(gl.reshape(value, (value.shape[0], 2, COLUMNS)), (0, 2, 1)))
        _store_box(left, c_desc, buffer, row, column)
        _store_box(right, c_desc, buffer, row, column + COLUMNS)


@gluon.jit
def _store_box(value, c_desc, buffer, row, column):
    tma.store_wait(0)
    buffer.store(value.to(c_desc.dtype))
    fence_async_shared()
    store_box(c_desc, [row, column], buffer)


@gluon.constexpr_function
def consumer_layout(dtype, columns):
    """The layout of a consumer's sums: four warps, one below the other."""
    depth = 256 // dtype.primitive_bitwidth
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, depth])


@gluon.jit
def wait(counter, target, peers):
    """``heap.wait`` in Gluon: a time-out tells one address after the other."""
    spins = 0
    behind = target - gl.atomic_add(counter, 0, sem="acquire", scope="sys")
    while (behind > 0) & (spins < peers.spins):
        spins = heap.next_spin(spins, peers.status, peers.spins)
        behind = target - gl.atomic_add(counter, 0, sem="acquire", scope="sys")
    late = (behind > 0).to(gl.int32)
    if late != 0:
        for each in range(gl.load(peers.status + 2)):
            address = gl.load(peers.status + 3 + each)
            gl.store(tl.cast(address, tl.pointer_type(tl.int64)), 1)
        gl.atomic_or(peers.status, 1, sem="acq_rel", scope="sys")
    return late


@gluon.jit
def signal_each(counter, peers, WORLD: gl.constexpr, WARPS: gl.constexpr):
    """``heap.signal_each`` in Gluon, to all ranks."""
    tl.debug_barrier()
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    lanes = gl.arange(0, triton.next_power_of_2(WORLD), layout=layout)
    each, there = (peers.rank + lanes) % WORLD, lanes < WORLD
    ones = lanes * 0 + 1
    heap.atomic_add(counter + lanes * 0, ones, peers.rank, each, peers.bases, mask=there, sem="release", scope="sys")


@gluon.jit
def seal_if(in_vain, out, elements, WARPS: gl.constexpr):
    """``heap.seal_if`` in Gluon."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    if in_vain:
        for begin in range(0, elements, 1024):
            at = begin + gl.arange(0, 1024, layout=layout)
            nan = gl.full([1024], float("nan"), gl.float32, layout=layout)
            gl.store(out + at, nan.to(out.dtype.element_ty), mask=at < elements)
