"""The warp-specialized kernel of all-gather + GEMM, in Gluon, for sm_90: in every program some warps push our shard,
one loads tiles by TMA as their rows arrive, and two warp groups multiply them.

Rows of tiles are walked from our own shard on, then the shard of the rank before us, which sends to us first, and so
on; ``group_m`` rows at a time, column by column. So a small group begins with what is here, and reads B once for each
group; a large one reads B once.

All programs are resident together, and all of them share each unit of the push, which waits for nothing.

Gluon takes the scalar functions of ``heap.device`` as they are; what has blocks there is written anew here, as blocks
have a layout in Gluon.
"""

from __future__ import annotations

from collections import namedtuple

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from autotune.heap import device as heap
from autotune.kernels.primitives import trace as traces
from autotune.kernels.primitives.counters import finish, read_epoch
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
    seal_if,
    store_part,
    wait,
)
from autotune.kernels.primitives.tiles import row_of, swizzle

Gather = namedtuple("Gather", "shard inbox arrivals scale_shard scale_inbox rows transfer_rows slot target trace")
"""Our shard, [rows, K], the inboxes' memory, [slots, WORLD, rows, K], and the same of scales, of one or K / 128 a row,
or None. A unit of ``transfer_rows`` rows has arrived when its counter, of int32 [WORLD, units], has reached the
``target``.
"""

Tiles = namedtuple("Tiles", "columns depth own_m tiles_n group_m")
"""The product of each shard is ``own_m`` x ``tiles_n`` tiles."""

Result = namedtuple("Result", "c buffers bias scale_a scale_b")


@gluon.jit
def tile_at(number, gather, tiles, peers, WORLD: gl.constexpr, FORM: gl.constexpr):
    """A tile's owner, its first row within the owner's shard, and its first column."""
    m, n = swizzle(number, WORLD * tiles.own_m, tiles.tiles_n, tiles.group_m)
    row = row_of(m % tiles.own_m, gather.rows, FORM.PARTS * FORM.ROWS)
    return (peers.rank + WORLD - m // tiles.own_m) % WORLD, row, n * FORM.COLUMNS


@gluon.jit
def scales_of_a_row(tiles, SCALES: gl.constexpr):
    """Scales of a row of A that go with it, see ``scales.py``."""
    return tiles.depth // 128 if SCALES == 3 else 1


@gluon.jit
def send(gather, tiles, peers, WORLD: gl.constexpr, WARPS: gl.constexpr, SCALES: gl.constexpr):
    """Push this program's share of our shard to the peers, one after the other, unit by unit, and signal each unit."""
    VECTOR: gl.constexpr = 128 // gather.shard.dtype.element_ty.primitive_bitwidth
    LINES: gl.constexpr = 4
    STEP: gl.constexpr = LINES * WARPS * 32 * VECTOR
    layout: gl.constexpr = gl.BlockedLayout([VECTOR], [32], [WARPS], [0])
    single: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    program, programs = gl.program_id(0), gl.num_programs(0)
    units = gl.cdiv(gather.rows, gather.transfer_rows)
    K = tiles.depth // VECTOR * VECTOR  # the compiler forgets what is said of an argument
    ours = (gather.slot * WORLD + peers.rank) * gather.rows
    for number in range((WORLD - 1) * units):
        peer = (peers.rank + 1 + number // units) % WORLD
        unit = number % units
        first = unit * gather.transfer_rows
        end = gl.minimum(first + gather.transfer_rows, gather.rows)
        target = gather.inbox + tl.cast(ours, tl.int64) * K
        traces.begin(gather.trace, traces.SENT, number, unit)
        last = tl.cast(end, tl.int64) * K
        for begin in range(tl.cast(first, tl.int64) * K + program * STEP, last, programs * STEP):
            at = begin + gl.arange(0, STEP, layout=layout)
            inside = at < last
            value = gl.load(gather.shard + at, mask=inside)
            heap.store(target + at, value, peers.rank, peer, peers.bases, mask=inside, hint=16)
        if SCALES >= 2:
            each = scales_of_a_row(tiles, SCALES)
            inbox = gather.scale_inbox + ours * each
            for begin in range(first * each + program * WARPS * 32, end * each, programs * WARPS * 32):
                at = begin + gl.arange(0, WARPS * 32, layout=single)
                scale = gl.load(gather.scale_shard + at, mask=at < end * each)
                heap.store(inbox + at, scale, peers.rank, peer, peers.bases, mask=at < end * each)
        heap.signal(gather.arrivals + peers.rank * units + unit, peer, peers)
        traces.end(gather.trace, traces.SENT, number)


@gluon.jit
def wait_for_tile(gather, source, row, peers, FORM: gl.constexpr):
    """Wait for the units that hold a tile's rows; see ``transfer.wait_for_rows``."""
    units = gl.cdiv(gather.rows, gather.transfer_rows)
    late = 0
    last = gl.minimum(row + FORM.PARTS * FORM.ROWS, gather.rows) - 1
    for unit in range(row // gather.transfer_rows, last // gather.transfer_rows + 1):
        late += wait(gather.arrivals + source * units + unit, gather.target, peers)
    return late + heap.fence_async_proxy(True)


@gluon.jit
def produce(own, inbox, b, ring, gather, tiles, peers, WORLD: gl.constexpr, FORM: gl.constexpr):
    """Load this program's tiles: ours from the shard, the others from the inbox once their rows have arrived."""
    step = 0
    waits = 0
    for number in range(gl.program_id(0), WORLD * tiles.own_m * tiles.tiles_n, gl.num_programs(0)):
        source, row, column = tile_at(number, gather, tiles, peers, WORLD, FORM)
        if source == peers.rank:
            step = load_tile(own, b, ring, step, row, column, tiles.columns, tiles.depth, FORM)
        else:
            traces.begin(gather.trace, traces.WAIT, waits, number)
            late = wait_for_tile(gather, source, row, peers, FORM)
            traces.end(gather.trace, traces.WAIT, waits)
            waits += 1
            place = (gather.slot * WORLD + source) * gather.rows + row + late
            step = load_tile(inbox, b, ring, step, place, column, tiles.columns, tiles.depth, FORM)


@gluon.jit
def scales_of(source, gather, tiles, peers, WORLD: gl.constexpr, SCALES: gl.constexpr):
    """A rank's scales of rows of A: our own, or those in the inbox."""
    of_rows = gather.scale_shard
    if source != peers.rank:
        of_rows = gather.scale_inbox
        of_rows += (gather.slot * WORLD + source) * gather.rows * scales_of_a_row(tiles, SCALES)
    return of_rows


@gluon.jit
def consume(
    ring, order, result, gather, tiles, peers, WHICH: gl.constexpr, WORLD: gl.constexpr, SCALES: gl.constexpr,
    BIAS: gl.constexpr, EPILOGUE: gl.constexpr, FORM: gl.constexpr,
):  # fmt: skip
    """Multiply and store our part of each tile or, in pingpong, every other tile."""
    layout: gl.constexpr = consumer_layout(ring.a.dtype, FORM.COLUMNS)
    wide: gl.constexpr = consumer_layout(ring.a.dtype, FORM.PIECES * FORM.COLUMNS)
    steps = gl.cdiv(tiles.depth, FORM.DEPTH)
    count = WHICH if FORM.TURNS == 2 else 0
    PART: gl.constexpr = WHICH if FORM.TURNS == 1 else 0
    programs = gl.num_programs(0)
    first = gl.program_id(0) + count * programs
    for number in range(first, WORLD * tiles.own_m * tiles.tiles_n, FORM.TURNS * programs):
        source, row, column = tile_at(number, gather, tiles, peers, WORLD, FORM)
        row += PART * FORM.ROWS
        if FORM.TURNS == 2 or WHICH == 0:
            traces.begin(gather.trace, traces.TILE, count, number)
        factors = None
        if SCALES == 3:
            of_rows = scales_of(source, gather, tiles, peers, WORLD, SCALES)
            given = (of_rows, row, gather.rows, result.scale_b)
            factors = factors_of(*given, column, tiles.columns, tiles.depth, wide, FORM)
        total = product(ring, order, count, count * steps, steps, factors, WHICH, wide, FORM)
        rows = row + gl.arange(0, FORM.ROWS, layout=gl.SliceLayout(1, layout))
        columns = column + gl.arange(0, FORM.COLUMNS, layout=gl.SliceLayout(0, layout))
        places = (rows, rows < gather.rows, columns, columns < tiles.columns)
        of_rows = None
        if SCALES == 2:
            of_rows = scales_of(source, gather, tiles, peers, WORLD, SCALES)
        if EPILOGUE == PLAIN:
            total = finished(total, result, of_rows, places, 0, SCALES, BIAS)
        else:
            gate, up = halves(total, layout)
            gate = finished(gate, result, of_rows, places, 0, SCALES, BIAS)
            up = finished(up, result, of_rows, places, tiles.columns, SCALES, BIAS)
            total = activated(gate, up, EPILOGUE)
        store_part(total, result.c, result.buffers.index(WHICH), source * gather.rows + row, column)
        if FORM.TURNS == 2 or WHICH == 0:
            traces.end(gather.trace, traces.TILE, count)
        count += FORM.TURNS
    # All of it, not only the reads: a NaN of ``seal`` comes after.
    tl.inline_asm_elementwise(
        "cp.async.bulk.wait_group 0; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )


@gluon.jit(do_not_specialize=["M", "N", "K", "shard_rows", "transfer_rows", "group_m", "rank", "spin_limit"])
def specialized_kernel(
    a, inbox, b, c, shard, inbox_pointer, result, bias, scale_a, scale_b, scale_shard, scale_inbox,
    M, N, K, shard_rows, transfer_rows, group_m, rank, heap_bases, epoch_counter, arrivals, trace, status, spin_limit,
    WORLD: gl.constexpr, SLOTS: gl.constexpr, PARTS: gl.constexpr, TURNS: gl.constexpr, ROWS: gl.constexpr,
    COLUMNS: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr, PROMOTE: gl.constexpr,
    B_TRANSPOSED: gl.constexpr, SCALES: gl.constexpr, BIAS: gl.constexpr, EPILOGUE: gl.constexpr,
    SENDING: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """C [M, N] = all_gather(A) @ B + bias, or with an EPILOGUE activation(gate) * up of B [K, 2 N] = [gate, up]. ``a``,
    ``inbox``, ``b`` and ``c`` are descriptors.
    """
    PIECES: gl.constexpr = 1 if EPILOGUE == PLAIN else 2
    FORM: gl.constexpr = known(Form, PARTS, TURNS, ROWS, COLUMNS, DEPTH, STAGES, PROMOTE, B_TRANSPOSED, PIECES)
    peers = heap.Peers(rank, heap_bases, status, spin_limit)
    epoch = read_epoch(epoch_counter)
    slot = (epoch & (SLOTS - 1)).to(gl.int32)
    target = ((epoch + 1) * gl.num_programs(0)).to(gl.int32)
    gather = Gather(
        shard, inbox_pointer, arrivals, scale_shard, scale_inbox, shard_rows, transfer_rows, slot, target, trace
    )  # fmt: skip
    tiles = Tiles(N, K, gl.cdiv(shard_rows, PARTS * ROWS), gl.cdiv(N, COLUMNS), group_m)
    ring = new_ring(a, b, FORM)
    order = new_order(ring, FORM)
    buffers = gl.allocate_shared_memory(c.dtype, [2, ROWS, c.block_type.shape[1]], c.layout)
    out = Result(c, buffers, bias, scale_a, scale_b)
    gl.warp_specialize(
        [
            (consume, (ring, order, out, gather, tiles, peers, 0, WORLD, SCALES, BIAS, EPILOGUE, FORM)),
            (consume, (ring, order, out, gather, tiles, peers, 1, WORLD, SCALES, BIAS, EPILOGUE, FORM)),
            (produce, (a, inbox, b, ring, gather, tiles, peers, WORLD, FORM)),
            (send, (gather, tiles, peers, WORLD, SENDING, SCALES)),
        ],
        [num_warps, 1, SENDING],
        [REGISTERS, FEW_REGISTERS, FEW_REGISTERS],
    )
    in_vain = heap.timed_out(status)
    finish(epoch_counter, gl.num_programs(0))
    seal_if(in_vain, result, tl.cast(M, tl.int64) * N, num_warps)
