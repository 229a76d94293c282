"""The warp-specialized GEMM whose parts are summed over the ranks, in Gluon, for sm_90: in every program one warp loads
tiles by TMA, two groups of four multiply them, and others send each finished tile to those who sum it, while the next
is multiplied.

    loading           tile 0 │ tile 1 │ tile 2 …
    multiplying              └ tile 0 ─┐ tile 1 ─┐ …
    sending                            └ tile 0, signal └ tile 1, signal …

A finished tile goes through shared memory, rounded to C's type, an own part like the others. The warps that have
multiplied it sum it, too: in pingpong while the others multiply, else after the last one. In a reduce-scatter an owner
sums, whose own tiles come last; in an all-reduce by one shot every rank does, by two shots the owner, in the next
launch, ``gemm_all_reduce.device.all_reduce_kernel``.

No wait starves its producer. In an all-reduce a program waits for tiles that peers' programs of its number send before
they wait for the same, and programs are dispatched in the order of their numbers. In a reduce-scatter programs wait for
nothing but their own tiles, behind all others, and are resident together.
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
from autotune.kernels.primitives.all_reduce import ONE_SHOT, SCATTER, TWO_SHOT
from autotune.kernels.primitives.counters import finish, read_epoch
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
    seal_if,
    wait,
)
from autotune.kernels.primitives.tiles import row_of, swizzle

Tiles = namedtuple("Tiles", "rows owned columns depth tiles_m tiles_n group_m")
"""A has ``rows``, of which an owner has ``owned``, in ``tiles_m`` x ``tiles_n`` tiles; in an all-reduce all are."""

Tile = namedtuple("Tile", "owner number m row column")
"""A tile's number among its owner's, its first row among the owner's, and its first column."""

Exchange = namedtuple("Exchange", "MODE WORLD SENDING ALIGNED")
"""Who sums, and the warps that send. Rows of C and of the residual begin at multiples of ALIGNED elements."""

Scales = namedtuple("Scales", "scale_a scale_b")

Outbox = namedtuple("Outbox", "buffers empty ready")
"""A buffer for each consumer, [2, ROWS, columns that go out at once], and their barriers."""

Inbox = namedtuple("Inbox", "parts arrivals slot target trace")
"""Where parts of tiles go, in the heap of whoever sums them: see ``primitives/all_reduce.py``. All of a tile's have
arrived when its counter has reached the ``target``.
"""

Result = namedtuple("Result", "c bias residual")

MULTIPLYING = gl.constexpr(216)
OTHERS = gl.constexpr(72)
"""Registers of a multiplying thread and of any other: 168 on average. With 40 those that send spill."""

LINES = gl.constexpr(4)
"""Vectors of 16 bytes that a thread moves at once."""


@gluon.jit
def tile_at(number, tiles, peers, EXCHANGE: gl.constexpr, FORM: gl.constexpr):
    """In a reduce-scatter the next rank's tiles come first, our own last."""
    owner = 0
    if EXCHANGE.MODE == SCATTER:
        each = tiles.tiles_m * tiles.tiles_n
        owner = (peers.rank + 1 + number // each) % EXCHANGE.WORLD
        number = number % each
    m, n = swizzle(number, tiles.tiles_m, tiles.tiles_n, tiles.group_m)
    row = row_of(m, tiles.owned, FORM.PARTS * FORM.ROWS)
    return Tile(owner, number, m, row, n * FORM.COLUMNS)


@gluon.jit
def count_of(tiles, EXCHANGE: gl.constexpr):
    """The tiles of a rank's product."""
    count = tiles.tiles_m * tiles.tiles_n
    if EXCHANGE.MODE == SCATTER:
        count *= EXCHANGE.WORLD
    return count


@gluon.jit
def produce(a, b, ring, tiles, peers, EXCHANGE: gl.constexpr, FORM: gl.constexpr):
    step = 0
    for number in range(gl.program_id(0), count_of(tiles, EXCHANGE), gl.num_programs(0)):
        tile = tile_at(number, tiles, peers, EXCHANGE, FORM)
        row = tile.owner * tiles.owned + tile.row
        step = load_tile(a, b, ring, step, row, tile.column, 0, tiles.depth, FORM)


@gluon.jit
def consume(
    ring, order, outbox, scales, inbox, result, tiles, peers, WHICH: gl.constexpr, SCALES: gl.constexpr,
    EXCHANGE: gl.constexpr, FORM: gl.constexpr,
):  # fmt: skip
    """Multiply our part of each tile or, in pingpong, every other tile, hand it to those who send, and sum."""
    layout: gl.constexpr = consumer_layout(ring.a.dtype, FORM.COLUMNS)
    steps = gl.cdiv(tiles.depth, FORM.DEPTH)
    count = WHICH if FORM.TURNS == 2 else 0
    PART: gl.constexpr = WHICH if FORM.TURNS == 1 else 0
    programs = gl.num_programs(0)
    first = gl.program_id(0) + count * programs
    for number in range(first, count_of(tiles, EXCHANGE), FORM.TURNS * programs):
        tile = tile_at(number, tiles, peers, EXCHANGE, FORM)
        row, column = tile.owner * tiles.owned + tile.row + PART * FORM.ROWS, tile.column
        if FORM.TURNS == 2 or WHICH == 0:
            traces.begin(inbox.trace, traces.TILE, count, number)
        factors = None
        if SCALES == 3:
            of_a = (scales.scale_a, row, tiles.rows)
            factors = factors_of(*of_a, scales.scale_b, column, tiles.depth, layout, FORM)
        total = product(ring, order, count, count * steps, steps, factors, WHICH, layout, FORM)
        rows = row + gl.arange(0, FORM.ROWS, layout=gl.SliceLayout(1, layout))
        columns = column + gl.arange(0, FORM.COLUMNS, layout=gl.SliceLayout(0, layout))
        places = (rows, rows < tiles.rows, columns, columns < tiles.columns)
        total = finished(total, scales, scales.scale_a, places, 0, SCALES, False)
        hand_over(total, outbox, count // FORM.TURNS, WHICH)
        if FORM.TURNS == 2 or WHICH == 0:
            traces.end(inbox.trace, traces.TILE, count)
        if FORM.TURNS == 2:
            sum_part(tile, 0, inbox, result, tiles, peers, EXCHANGE, FORM)
        count += FORM.TURNS
    if FORM.TURNS == 1:
        for number in range(first, count_of(tiles, EXCHANGE), programs):
            tile = tile_at(number, tiles, peers, EXCHANGE, FORM)
            sum_part(tile, WHICH, inbox, result, tiles, peers, EXCHANGE, FORM)


@gluon.jit
def sum_part(tile, part, inbox, result, tiles, peers, EXCHANGE: gl.constexpr, FORM: gl.constexpr):
    """A consumer's rows of a tile, if they are summed here."""
    if EXCHANGE.MODE == ONE_SHOT:
        add_up(tile, part, inbox, result, tiles, peers, EXCHANGE, FORM)
    elif EXCHANGE.MODE == SCATTER:
        if tile.owner == peers.rank:
            add_up(tile, part, inbox, result, tiles, peers, EXCHANGE, FORM)


@gluon.jit
def add_up(tile, part, inbox, result, tiles, peers, EXCHANGE: gl.constexpr, FORM: gl.constexpr):
    """C's rows of a tile: the sum of all ranks' parts in their order, with bias and residual."""
    BLOCK_M: gl.constexpr = FORM.PARTS * FORM.ROWS
    ACROSS: gl.constexpr = FORM.COLUMNS // 8
    STEP: gl.constexpr = LINES * 4 * 32 // ACROSS
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 // ACROSS, ACROSS], [4, 1], [1, 0])
    blocks = tiles.tiles_m * tiles.tiles_n
    wait(inbox.arrivals + inbox.slot * blocks + tile.number, inbox.target, peers)
    index = inbox.slot * EXCHANGE.WORLD * blocks + tile.number
    place = inbox.parts + tl.cast(index, tl.int64) * (BLOCK_M * FORM.COLUMNS) + part * (FORM.ROWS * FORM.COLUMNS)
    apart = tl.cast(blocks, tl.int64) * (BLOCK_M * FORM.COLUMNS)
    columns = gl.arange(0, FORM.COLUMNS, layout=gl.SliceLayout(0, layout))
    N = tiles.columns // EXCHANGE.ALIGNED * EXCHANGE.ALIGNED  # the compiler forgets what is said of an argument
    in_columns = tile.column + columns < N
    for begin in range(0, FORM.ROWS, STEP):
        rows = begin + gl.arange(0, STEP, layout=gl.SliceLayout(1, layout))
        total = gl.zeros((STEP, FORM.COLUMNS), dtype=gl.float32, layout=layout)
        for source in gl.static_range(EXCHANGE.WORLD):
            at = place + source * apart + rows[:, None] * FORM.COLUMNS + columns[None, :]
            total += gl.load(in_vectors(at, 8)).to(gl.float32)
        here = tile.row + part * FORM.ROWS + rows
        inside = ((here >= tile.m * BLOCK_M) & (here < tiles.owned))[:, None] & in_columns[None, :]
        at = here.to(gl.int64)[:, None] * N + tile.column + columns[None, :]
        if result.bias is not None:
            bias = gl.load(result.bias + tile.column + columns, mask=in_columns, other=0.0)
            total += bias.to(gl.float32)[None, :]
        if result.residual is not None:
            residual = gl.load(in_vectors(result.residual + at, EXCHANGE.ALIGNED), mask=inside, other=0.0)
            total += residual.to(gl.float32)
        gl.store(in_vectors(result.c + at, EXCHANGE.ALIGNED), total.to(result.c.dtype.element_ty), mask=inside)


@gluon.jit
def in_vectors(pointers, ELEMENTS: gl.constexpr):
    """Pointers [rows, columns] that are aligned by ELEMENTS, which the compiler has forgotten, too."""
    return tl.max_contiguous(tl.multiple_of(pointers, (1, ELEMENTS)), (1, ELEMENTS))


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
def send(outbox, inbox, tiles, peers, EXCHANGE: gl.constexpr, FORM: gl.constexpr):
    """Send each tile to all ranks, or to its owner, and signal it there: as ``all_reduce.share_part`` does."""
    WIDTH: gl.constexpr = outbox.buffers.shape[2]
    PIECES: gl.constexpr = FORM.COLUMNS // WIDTH
    blocks = tiles.tiles_m * tiles.tiles_n
    box = inbox.slot * EXCHANGE.WORLD + peers.rank
    programs = gl.num_programs(0)
    for count in range(gl.cdiv(count_of(tiles, EXCHANGE) - gl.program_id(0), programs)):
        tile = tile_at(gl.program_id(0) + count * programs, tiles, peers, EXCHANGE, FORM)
        traces.begin(inbox.trace, traces.SENT, count, tile.number)
        first, index = peers.rank, box * blocks + tile.number
        if EXCHANGE.MODE == SCATTER:
            first = tile.owner
        elif EXCHANGE.MODE == TWO_SHOT:
            first = tile.number % EXCHANGE.WORLD
            index = box * gl.cdiv(blocks, EXCHANGE.WORLD) + tile.number // EXCHANGE.WORLD
        place = inbox.parts + tl.cast(index, tl.int64) * (FORM.PARTS * FORM.ROWS * FORM.COLUMNS)
        for turn in range(FORM.PARTS * PIECES):
            part, piece = turn // PIECES, turn % PIECES
            which = part if FORM.TURNS == 1 else count % 2
            mbarrier.wait(outbox.ready.index(which), (count // FORM.TURNS * PIECES + piece) & 1)
            send_piece(
                outbox.buffers.index(which), place + part * (FORM.ROWS * FORM.COLUMNS) + piece * WIDTH,
                tiles.owned - tile.row - part * FORM.ROWS, first, peers, EXCHANGE, FORM,
            )  # fmt: skip
            tl.debug_barrier()  # every thread has read
            mbarrier.arrive(outbox.empty.index(which), count=1)
        counter = inbox.arrivals + inbox.slot * blocks + tile.number
        if EXCHANGE.MODE == ONE_SHOT:
            signal_each(counter, peers, EXCHANGE)
        else:
            heap.signal(counter, first, peers)
        traces.end(inbox.trace, traces.SENT, count)


@gluon.jit
def send_piece(buffer, place, rows_left, first, peers, EXCHANGE: gl.constexpr, FORM: gl.constexpr):
    """A buffer's rows that exist to the rank ``first``, or to all from it on."""
    WIDTH: gl.constexpr = buffer.shape[1]
    ACROSS: gl.constexpr = WIDTH // 8
    STEP: gl.constexpr = LINES * EXCHANGE.SENDING * 32 // ACROSS
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 // ACROSS, ACROSS], [EXCHANGE.SENDING, 1], [1, 0])
    columns = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, layout))
    for begin in gl.static_range(0, FORM.ROWS, STEP):
        rows = begin + gl.arange(0, STEP, layout=gl.SliceLayout(1, layout))
        value = buffer.slice(begin, STEP, dim=0).load(layout)
        at = place + rows[:, None] * FORM.COLUMNS + columns[None, :]
        inside = (rows < rows_left)[:, None] & (columns < WIDTH)[None, :]
        for turn in gl.static_range(EXCHANGE.WORLD if EXCHANGE.MODE == ONE_SHOT else 1):
            peer = (first + turn) % EXCHANGE.WORLD
            heap.store(at, value, peers.rank, peer, peers.bases, mask=inside, hint=(1, 16))


@gluon.jit
def signal_each(counter, peers, EXCHANGE: gl.constexpr):
    """``heap.signal_each`` in Gluon."""
    tl.debug_barrier()
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [EXCHANGE.SENDING], [0])
    lanes = gl.arange(0, triton.next_power_of_2(EXCHANGE.WORLD), layout=layout)
    each, there = (peers.rank + lanes) % EXCHANGE.WORLD, lanes < EXCHANGE.WORLD
    ones = lanes * 0 + 1
    heap.atomic_add(counter + lanes * 0, ones, peers.rank, each, peers.bases, mask=there, sem="release", scope="sys")


@gluon.jit(do_not_specialize=["M", "N", "K", "owned", "group_m", "rank", "spin_limit"])
def multiply_and_send_kernel(
    a, b, c, scale_a, scale_b, bias, residual, inbox, M, N, K, owned, group_m, rank, heap_bases, epoch_counter,
    arrivals, trace, status, spin_limit, TYPE: gl.constexpr, WORLD: gl.constexpr, MODE: gl.constexpr,
    PARTS: gl.constexpr, TURNS: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr, DEPTH: gl.constexpr,
    STAGES: gl.constexpr, PROMOTE: gl.constexpr, B_TRANSPOSED: gl.constexpr, SCALES: gl.constexpr,
    STORED: gl.constexpr, SENDING: gl.constexpr, ALIGNED: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """C = the sum over ranks of A [M, K] @ B [K, N], + bias + residual (None: without): all of it or, with SCATTER, our
    ``owned`` rows; by two shots its parts alone. ``a`` and ``b`` are descriptors.
    """
    FORM: gl.constexpr = known(Form, PARTS, TURNS, ROWS, COLUMNS, DEPTH, STAGES, PROMOTE, B_TRANSPOSED, 1)
    EXCHANGE: gl.constexpr = known(Exchange, MODE, WORLD, SENDING, ALIGNED)
    peers = heap.Peers(rank, heap_bases, status, spin_limit)
    epoch = read_epoch(epoch_counter)
    slot, target = (epoch & 1).to(gl.int32), (((epoch >> 1) + 1) * WORLD).to(gl.int32)
    tiles = Tiles(M, owned, N, K, gl.cdiv(owned, PARTS * ROWS), gl.cdiv(N, COLUMNS), group_m)
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
    parts = Inbox(inbox, arrivals, slot, target, trace)
    scales, result = Scales(scale_a, scale_b), Result(c, bias, residual)
    gl.warp_specialize(
        [
            (consume, (ring, order, outbox, scales, parts, result, tiles, peers, 0, SCALES, EXCHANGE, FORM)),
            (consume, (ring, order, outbox, scales, parts, result, tiles, peers, 1, SCALES, EXCHANGE, FORM)),
            (produce, (a, b, ring, tiles, peers, EXCHANGE, FORM)),
            (send, (outbox, parts, tiles, peers, EXCHANGE, FORM)),
        ],
        [num_warps, 1, SENDING],
        [MULTIPLYING, OTHERS, OTHERS],
    )
    if MODE != TWO_SHOT:
        in_vain = heap.timed_out(status)
        finish(epoch_counter, gl.num_programs(0))
        seal_if(in_vain, c, tl.cast(owned, tl.int64) * N, num_warps)
