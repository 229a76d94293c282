"""The warp-specialized kernel of GEMM + reduce-scatter, in Gluon, for sm_90: one warp loads tiles by TMA, two warp
groups multiply them, send them to their owner, and add up what the peers have sent.

As in ``device.py`` tiles are cut owner by owner, a launch computes the peers' first and its own last, and the inbox has
two slots, for the reasons given there. All programs are resident. A group of warps signals its part of a tile, or in
pingpong its tile, in its next turn: a signal waits until what was stored has arrived, and by then it has.
"""

from __future__ import annotations

from collections import namedtuple

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from autotune.heap import device as heap
from autotune.kernels.primitives import trace as traces
from autotune.kernels.primitives.counters import finish, read_epoch
from autotune.kernels.primitives.known import known
from autotune.kernels.primitives.specialized import (
    FEW_REGISTERS,
    REGISTERS,
    Form,
    consumer_layout,
    load_tile,
    new_order,
    new_ring,
    product,
    seal_if,
    wait,
)
from autotune.kernels.primitives.tiles import row_of, swizzle

Tiles = namedtuple("Tiles", "rows columns depth tiles_m tiles_n group_m")
"""Each rank owns ``rows`` rows of C, in ``tiles_m`` x ``tiles_n`` tiles."""

Sums = namedtuple("Sums", "c bias residual scale_a scale_b inbox arrivals slot target trace")
"""The inbox, [2 slots, WORLD, tiles, PARTS · ROWS, COLUMNS], and counters of what has arrived, int32 [WORLD, tiles]: a
tile is there once its counter has reached the ``target``.
"""


@gluon.jit
def tile_at(number, tiles, peers, WORLD: gl.constexpr, WHOLE: gl.constexpr, FORM: gl.constexpr):
    """A tile's owner, its first row among the owner's, its first column, its number among the owner's tiles.

    WHOLE: no row is in two tiles, for a residual in whose place C may be stored.
    """
    remote = (WORLD - 1) * tiles.tiles_m * tiles.tiles_n
    is_own = number >= remote
    among = number - remote if is_own else number
    rows_of_tiles = tiles.tiles_m if is_own else (WORLD - 1) * tiles.tiles_m
    m, n = swizzle(among, rows_of_tiles, tiles.tiles_n, tiles.group_m)
    ahead = 0 if is_own else 1 + m // tiles.tiles_m
    m = m % tiles.tiles_m
    row = m * FORM.PARTS * FORM.ROWS
    if not WHOLE:
        row = row_of(m, tiles.rows, FORM.PARTS * FORM.ROWS)
    return (peers.rank + ahead) % WORLD, row, n * FORM.COLUMNS, n * tiles.tiles_m + m


@gluon.jit
def produce(a, b, ring, tiles, peers, WORLD: gl.constexpr, WHOLE: gl.constexpr, FORM: gl.constexpr):
    step = 0
    for number in range(gl.program_id(0), WORLD * tiles.tiles_m * tiles.tiles_n, gl.num_programs(0)):
        owner, row, column, index = tile_at(number, tiles, peers, WORLD, WHOLE, FORM)
        step = load_tile(a, b, ring, step, owner * tiles.rows + row, column, tiles.depth, FORM)


@gluon.jit
def through(value, buffer, layout: gl.constexpr):
    """A block of sums, rounded to the buffer's type, with 16 bytes of a row in each thread."""
    buffer.store(value.to(buffer.dtype))
    return buffer.load(layout)


@gluon.jit
def parted(value, W: gl.constexpr):
    """A block [ROWS, 2 · W] in its left and right halves; one of W columns twice."""
    if value.shape[1] == W:
        left, right = value, value
    else:
        left, right = gl.split(gl.permute(gl.reshape(value, (value.shape[0], 2, W)), (0, 2, 1)))
    return left, right


@gluon.jit
def send(value, buffer, place, peer, peers, inbox, first: gl.constexpr, FORM: gl.constexpr, layout: gl.constexpr):
    """Store columns from ``first`` on of a part of a tile at element ``place`` of the peer's inbox."""
    value = through(value, buffer, layout)
    rows = gl.arange(0, value.shape[0], layout=gl.SliceLayout(1, layout))
    columns = gl.arange(0, value.shape[1], layout=gl.SliceLayout(0, layout))
    at = inbox + place + (rows[:, None] * FORM.COLUMNS + first + columns[None, :])
    heap.store(at, value, peers.rank, peer, peers.bases, hint=(1, 16))


@gluon.jit
def collect(
    value, buffer, index, part, row, column, sums, tiles, peers, first: gl.constexpr, WORLD: gl.constexpr,
    BIAS: gl.constexpr, FORM: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """C = our part of these columns of our own tile, rounded as the peers' are, + theirs + bias + residual, in
    the order of ``exchange.add_tiles``.
    """
    SIZE: gl.constexpr = FORM.PARTS * FORM.ROWS * FORM.COLUMNS
    of_rank = tiles.tiles_m * tiles.tiles_n
    total = through(value, buffer, layout).to(gl.float32)
    rows = gl.arange(0, value.shape[0], layout=gl.SliceLayout(1, layout))
    columns = gl.arange(0, value.shape[1], layout=gl.SliceLayout(0, layout))
    inside = (part * FORM.ROWS + rows[:, None]) * FORM.COLUMNS + first + columns[None, :]
    for back in range(1, WORLD):
        source = (peers.rank + WORLD - back) % WORLD
        late = wait(sums.arrivals + source * of_rank + index, sums.target, peers)
        place = tl.cast((sums.slot * WORLD + source) * of_rank + index + late, tl.int64) * SIZE
        total += gl.load(sums.inbox + place + inside).to(gl.float32)
    rows += row + part * FORM.ROWS
    columns += column + first
    there = (rows < tiles.rows)[:, None] & (columns < tiles.columns)[None, :]
    at = tl.cast(rows, tl.int64)[:, None] * tiles.columns + columns[None, :]
    if BIAS:
        total += gl.load(sums.bias + columns, mask=columns < tiles.columns, other=0.0).to(gl.float32)[None, :]
    if sums.residual is not None:
        total += gl.load(sums.residual + at, mask=there, other=0.0).to(gl.float32)
    gl.store(sums.c + at, total.to(sums.c.dtype.element_ty), mask=there)


@gluon.jit
def consume(
    ring, order, buffers, sums, tiles, peers, WHICH: gl.constexpr, WORLD: gl.constexpr, WHOLE: gl.constexpr,
    SCALES: gl.constexpr, BIAS: gl.constexpr, W: gl.constexpr, FORM: gl.constexpr,
):  # fmt: skip
    """Multiply our part of each tile or, in pingpong, every other tile: the peers' to send, then ours to add up."""
    layout: gl.constexpr = consumer_layout(ring.a.dtype, FORM.COLUMNS)
    rowwise: gl.constexpr = gl.BlockedLayout([1, 8], [256 // W, W // 8], [4, 1], [1, 0])
    PART: gl.constexpr = WHICH if FORM.TURNS == 1 else 0
    SIZE: gl.constexpr = FORM.PARTS * FORM.ROWS * FORM.COLUMNS
    steps = gl.cdiv(tiles.depth, FORM.DEPTH)
    count = WHICH if FORM.TURNS == 2 else 0
    of_rank = tiles.tiles_m * tiles.tiles_n
    buffer = buffers.index(WHICH)
    programs = gl.num_programs(0)
    stored_owner = peers.rank  # what a late signal is about; at first there is none
    stored_index = 0
    first = gl.program_id(0) + count * programs
    for number in range(first, WORLD * of_rank, FORM.TURNS * programs):
        owner, row, column, index = tile_at(number, tiles, peers, WORLD, WHOLE, FORM)
        if FORM.TURNS == 2 or WHICH == 0:
            traces.begin(sums.trace, traces.TILE, count, number)
        total = product(ring, order, count, count * steps, steps, WHICH, layout, FORM)
        if SCALES == 1:
            total *= gl.load(sums.scale_a) * gl.load(sums.scale_b)
        if SCALES == 2:
            rows = row + PART * FORM.ROWS + gl.arange(0, FORM.ROWS, layout=gl.SliceLayout(1, layout))
            columns = column + gl.arange(0, FORM.COLUMNS, layout=gl.SliceLayout(0, layout))
            of_rows = sums.scale_a + owner * tiles.rows
            total *= gl.load(of_rows + rows, mask=rows < tiles.rows, other=0.0)[:, None]
            total *= gl.load(sums.scale_b + columns, mask=columns < tiles.columns, other=0.0)[None, :]
        if stored_owner != peers.rank:
            heap.signal(sums.arrivals + peers.rank * of_rank + stored_index, stored_owner, peers)
        stored_owner = owner
        stored_index = index
        left, right = parted(total, W)
        if owner != peers.rank:
            traces.begin(sums.trace, traces.SENT, count, number)
            mine = (sums.slot * WORLD + peers.rank) * of_rank + index
            place = tl.cast(mine, tl.int64) * SIZE + PART * FORM.ROWS * FORM.COLUMNS
            send(left, buffer, place, owner, peers, sums.inbox, 0, FORM, rowwise)
            if FORM.COLUMNS > W:
                send(right, buffer, place, owner, peers, sums.inbox, W, FORM, rowwise)
            traces.end(sums.trace, traces.SENT, count)
        else:
            collect(left, buffer, index, PART, row, column, sums, tiles, peers, 0, WORLD, BIAS, FORM, rowwise)
            if FORM.COLUMNS > W:
                collect(right, buffer, index, PART, row, column, sums, tiles, peers, W, WORLD, BIAS, FORM, rowwise)
        if FORM.TURNS == 2 or WHICH == 0:
            traces.end(sums.trace, traces.TILE, count)
        count += FORM.TURNS
    if stored_owner != peers.rank:
        heap.signal(sums.arrivals + peers.rank * of_rank + stored_index, stored_owner, peers)


@gluon.jit(do_not_specialize=["M", "rows", "group_m", "rank", "spin_limit"])
def specialized_kernel(
    a, b, result, bias, residual, scale_a, scale_b, inbox, M, N, K, rows, group_m, rank,
    heap_bases, epoch_counter, arrivals, trace, status, spin_limit,
    WORLD: gl.constexpr, PARTS: gl.constexpr, TURNS: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr,
    DEPTH: gl.constexpr, STAGES: gl.constexpr, PROMOTE: gl.constexpr, KN: gl.constexpr, SCALES: gl.constexpr,
    BIAS: gl.constexpr, STORED: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """C [rows, N] = the sum over ranks of our rows of A [M, K] @ B [K, N], + bias [N] + residual [rows, N] or None."""
    FORM: gl.constexpr = known(Form, PARTS, TURNS, ROWS, COLUMNS, DEPTH, STAGES, PROMOTE, KN)
    WHOLE: gl.constexpr = residual is not None
    peers = heap.Peers(rank, heap_bases, status, spin_limit)
    epoch = read_epoch(epoch_counter)
    slot = (epoch & 1).to(tl.int32)
    target = ((epoch + 1) * PARTS).to(tl.int32)
    tiles = Tiles(rows, N, K, gl.cdiv(rows, PARTS * ROWS), gl.cdiv(N, COLUMNS), group_m)
    sums = Sums(result, bias, residual, scale_a, scale_b, inbox, arrivals, slot, target, trace)
    ring = new_ring(a, b, FORM)
    order = new_order()
    box: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, STORED], result.dtype.element_ty)
    buffers = gl.allocate_shared_memory(result.dtype.element_ty, [2, ROWS, STORED], box)
    gl.warp_specialize(
        [
            (consume, (ring, order, buffers, sums, tiles, peers, 0, WORLD, WHOLE, SCALES, BIAS, STORED, FORM)),
            (consume, (ring, order, buffers, sums, tiles, peers, 1, WORLD, WHOLE, SCALES, BIAS, STORED, FORM)),
            (produce, (a, b, ring, tiles, peers, WORLD, WHOLE, FORM)),
        ],
        [num_warps, 1],
        [REGISTERS, FEW_REGISTERS],
    )
    in_vain = heap.timed_out(status)
    finish(epoch_counter, gl.num_programs(0))
    seal_if(in_vain, result, tl.cast(rows, tl.int64) * N, num_warps)
