"""The warp-specialized GEMM of GEMM + all-reduce, in Gluon, for sm_90: in every program one warp loads tiles by TMA,
two groups of four multiply them, and others send each finished tile to those who sum it, while the next is multiplied.

    loading           tile 0 │ tile 1 │ tile 2 …
    multiplying              └ tile 0 ─┐ tile 1 ─┐ …
    sending                            └ tile 0, signal └ tile 1, signal …

A finished tile goes through shared memory, rounded to C's type. Nothing here waits for a peer: the sums are the next
launch, ``device.all_reduce_kernel``.
"""

from __future__ import annotations

from collections import namedtuple

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from autotune.heap import device as heap
from autotune.kernels.primitives import trace as traces
from autotune.kernels.primitives.all_reduce import ONE_SHOT
from autotune.kernels.primitives.counters import read_epoch
from autotune.kernels.primitives.known import known
from autotune.kernels.primitives.specialized import (
    Form,
    consumer_layout,
    factors_of,
    finished,
    load_tile,
    new_order,
    new_ring,
    product,
)
from autotune.kernels.primitives.tiles import row_of, swizzle

Tiles = namedtuple("Tiles", "rows columns depth tiles_m tiles_n group_m")

Scales = namedtuple("Scales", "scale_a scale_b")

Outbox = namedtuple("Outbox", "buffers empty ready")
"""A buffer for each consumer, [2, ROWS, columns that go out at once], and their barriers."""

Inbox = namedtuple("Inbox", "parts arrivals slot trace")
"""Where parts of tiles go, in the heap of whoever sums them: see ``primitives/all_reduce.py``."""

MULTIPLYING = gl.constexpr(216)
OTHERS = gl.constexpr(72)
"""Registers of a multiplying thread and of any other: 168 on average. With 40 those that send spill."""

LINES = gl.constexpr(4)
"""Vectors of 16 bytes that a sending thread holds."""


@gluon.jit
def tile_at(number, tiles, FORM: gl.constexpr):
    """A tile's first row and column."""
    m, n = swizzle(number, tiles.tiles_m, tiles.tiles_n, tiles.group_m)
    return row_of(m, tiles.rows, FORM.PARTS * FORM.ROWS), n * FORM.COLUMNS


@gluon.jit
def produce(a, b, ring, tiles, FORM: gl.constexpr):
    step = 0
    for number in range(gl.program_id(0), tiles.tiles_m * tiles.tiles_n, gl.num_programs(0)):
        row, column = tile_at(number, tiles, FORM)
        step = load_tile(a, b, ring, step, row, column, 0, tiles.depth, FORM)


@gluon.jit
def consume(ring, order, outbox, scales, tiles, trace, WHICH: gl.constexpr, SCALES: gl.constexpr, FORM: gl.constexpr):
    """Multiply our part of each tile or, in pingpong, every other tile, and hand it to those who send."""
    layout: gl.constexpr = consumer_layout(ring.a.dtype, FORM.COLUMNS)
    steps = gl.cdiv(tiles.depth, FORM.DEPTH)
    count = WHICH if FORM.TURNS == 2 else 0
    PART: gl.constexpr = WHICH if FORM.TURNS == 1 else 0
    programs = gl.num_programs(0)
    first = gl.program_id(0) + count * programs
    for number in range(first, tiles.tiles_m * tiles.tiles_n, FORM.TURNS * programs):
        row, column = tile_at(number, tiles, FORM)
        row += PART * FORM.ROWS
        if FORM.TURNS == 2 or WHICH == 0:
            traces.begin(trace, traces.TILE, count, number)
        factors = None
        if SCALES == 3:
            factors = factors_of(
                scales.scale_a, row, tiles.rows, scales.scale_b, column, tiles.depth, layout, FORM
            )  # fmt: skip
        total = product(ring, order, count, count * steps, steps, factors, WHICH, layout, FORM)
        rows = row + gl.arange(0, FORM.ROWS, layout=gl.SliceLayout(1, layout))
        columns = column + gl.arange(0, FORM.COLUMNS, layout=gl.SliceLayout(0, layout))
        places = (rows, rows < tiles.rows, columns, columns < tiles.columns)
        total = finished(total, scales, scales.scale_a, places, 0, SCALES, False)
        hand_over(total, outbox, count // FORM.TURNS, WHICH)
        if FORM.TURNS == 2 or WHICH == 0:
            traces.end(trace, traces.TILE, count)
        count += FORM.TURNS


@gluon.jit
def hand_over(total, outbox, use, WHICH: gl.constexpr):
    """A consumer's ``use``-th tile through its buffer, in one piece or in two."""
    WIDTH: gl.constexpr = outbox.buffers.shape[2]
    if total.shape[1] == WIDTH:
        _hand_over(total, outbox, use, WHICH)
    else:
        left, right = gl.split(gl.permute(gl.reshape(total, (total.shape[0], 2, WIDTH)), (0, 2, 1)))
        _hand_over(left, outbox, 2 * use, WHICH)
        _hand_over(right, outbox, 2 * use + 1, WHICH)


@gluon.jit
def _hand_over(value, outbox, use, WHICH: gl.constexpr):
    mbarrier.wait(outbox.empty.index(WHICH), (use & 1) ^ 1)
    outbox.buffers.index(WHICH).store(value.to(outbox.buffers.dtype))
    tl.debug_barrier()
    mbarrier.arrive(outbox.ready.index(WHICH), count=1)


@gluon.jit
def send(outbox, inbox, tiles, peers, WORLD: gl.constexpr, MODE: gl.constexpr, WARPS: gl.constexpr, FORM: gl.constexpr):
    """Send each tile to all ranks, or to its owner, and signal it there: as ``all_reduce.share_part`` does."""
    WIDTH: gl.constexpr = outbox.buffers.shape[2]
    PIECES: gl.constexpr = FORM.COLUMNS // WIDTH
    BLOCK_M: gl.constexpr = FORM.PARTS * FORM.ROWS
    blocks = tiles.tiles_m * tiles.tiles_n
    box = inbox.slot * WORLD + peers.rank
    programs = gl.num_programs(0)
    for count in range(gl.cdiv(blocks - gl.program_id(0), programs)):
        number = gl.program_id(0) + count * programs
        row, _ = tile_at(number, tiles, FORM)
        traces.begin(inbox.trace, traces.SENT, count, number)
        first = peers.rank
        index = box * blocks + number
        if MODE != ONE_SHOT:
            first = number % WORLD
            index = box * gl.cdiv(blocks, WORLD) + number // WORLD
        place = inbox.parts + tl.cast(index, tl.int64) * (BLOCK_M * FORM.COLUMNS)
        for turn in range(FORM.PARTS * PIECES):
            part, piece = turn // PIECES, turn % PIECES
            which = part if FORM.TURNS == 1 else count % 2
            mbarrier.wait(outbox.ready.index(which), (count // FORM.TURNS * PIECES + piece) & 1)
            send_piece(
                outbox.buffers.index(which), place + part * (FORM.ROWS * FORM.COLUMNS) + piece * WIDTH,
                tiles.rows - row - part * FORM.ROWS, first, peers, WORLD, MODE, WARPS, FORM,
            )  # fmt: skip
            tl.debug_barrier()  # every thread has read
            mbarrier.arrive(outbox.empty.index(which), count=1)
        counter = inbox.arrivals + inbox.slot * blocks + number
        if MODE == ONE_SHOT:
            signal_each(counter, peers, WORLD, WARPS)
        else:
            heap.signal(counter, first, peers)
        traces.end(inbox.trace, traces.SENT, count)


@gluon.jit
def send_piece(
    buffer, place, rows_left, first, peers, WORLD: gl.constexpr, MODE: gl.constexpr, WARPS: gl.constexpr,
    FORM: gl.constexpr,
):  # fmt: skip
    """A buffer's rows that exist to the rank ``first``, or to all from it on."""
    WIDTH: gl.constexpr = buffer.shape[1]
    ACROSS: gl.constexpr = WIDTH // 8
    STEP: gl.constexpr = LINES * WARPS * 32 // ACROSS
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 // ACROSS, ACROSS], [WARPS, 1], [1, 0])
    columns = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, layout))
    for begin in gl.static_range(0, FORM.ROWS, STEP):
        rows = begin + gl.arange(0, STEP, layout=gl.SliceLayout(1, layout))
        value = buffer.slice(begin, STEP, dim=0).load(layout)
        at = place + rows[:, None] * FORM.COLUMNS + columns[None, :]
        inside = (rows < rows_left)[:, None] & (columns < WIDTH)[None, :]
        for turn in gl.static_range(WORLD if MODE == ONE_SHOT else 1):
            heap.store(at, value, peers.rank, (first + turn) % WORLD, peers.bases, mask=inside, hint=(1, 16))


@gluon.jit
def signal_each(counter, peers, WORLD: gl.constexpr, WARPS: gl.constexpr):
    """``heap.signal_each`` in Gluon."""
    tl.debug_barrier()
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    lanes = gl.arange(0, triton.next_power_of_2(WORLD), layout=layout)
    each = (peers.rank + lanes) % WORLD
    ones = lanes * 0 + 1
    heap.atomic_add(
        counter + lanes * 0, ones, peers.rank, each, peers.bases, mask=lanes < WORLD, sem="release", scope="sys"
    )


@gluon.jit(do_not_specialize=["M", "N", "K", "group_m", "rank"])
def multiply_and_send_kernel(
    a, b, scale_a, scale_b, inbox, M, N, K, group_m, rank, heap_bases, epoch_counter, arrivals, trace,
    TYPE: gl.constexpr, WORLD: gl.constexpr, MODE: gl.constexpr, PARTS: gl.constexpr, TURNS: gl.constexpr,
    ROWS: gl.constexpr, COLUMNS: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr, PROMOTE: gl.constexpr,
    B_TRANSPOSED: gl.constexpr, SCALES: gl.constexpr, STORED: gl.constexpr, SENDING: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """This rank's part of C [M, N], A [M, K] @ B [K, N], tile by tile to those who sum them. ``a`` and ``b`` are
    descriptors.
    """
    FORM: gl.constexpr = known(Form, PARTS, TURNS, ROWS, COLUMNS, DEPTH, STAGES, PROMOTE, B_TRANSPOSED, 1)
    peers = heap.Peers(rank, heap_bases)
    slot = (read_epoch(epoch_counter) & 1).to(gl.int32)
    tiles = Tiles(M, N, K, gl.cdiv(M, PARTS * ROWS), gl.cdiv(N, COLUMNS), group_m)
    ring = new_ring(a, b, FORM)
    order = new_order(ring, FORM)
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, STORED], TYPE)
    outbox = Outbox(
        gl.allocate_shared_memory(TYPE, [2, ROWS, STORED], layout),
        gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout()),
        gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout()),
    )
    for i in gl.static_range(2):
        mbarrier.init(outbox.empty.index(i), count=1)
        mbarrier.init(outbox.ready.index(i), count=1)
    parts, scales = Inbox(inbox, arrivals, slot, trace), Scales(scale_a, scale_b)
    gl.warp_specialize(
        [
            (consume, (ring, order, outbox, scales, tiles, trace, 0, SCALES, FORM)),
            (consume, (ring, order, outbox, scales, tiles, trace, 1, SCALES, FORM)),
            (produce, (a, b, ring, tiles, FORM)),
            (send, (outbox, parts, tiles, peers, WORLD, MODE, SENDING, FORM)),
        ],
        [num_warps, 1, SENDING],
        [MULTIPLYING, OTHERS, OTHERS],
    )
