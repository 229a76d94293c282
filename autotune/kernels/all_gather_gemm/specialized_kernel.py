"""The warp-specialized kernel of all-gather + GEMM, in Gluon, for sm_90: in every program some warps push our shard,
one loads tiles by TMA as their rows arrive, and two warp groups multiply them.

Rows of tiles are walked from our own shard on, then the shard of the rank before us, which sends to us first, and so
on; ``group_m`` rows at a time, column by column. So a small group begins with what is here, and reads B once for each
group; a large one reads B once.

With one OWNER tiles go across shards' edges, and A is read from the inbox alone, which gets our own rows, too: for few
rows, which one tile takes from all ranks, so that B is read once. Ranges of K come one after the other, and B fills the
ring before any has come.

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
from autotune.kernels.all_gather_gemm.split_tail import Tail, item_at, items_of, joined
from autotune.kernels.primitives import trace as traces
from autotune.kernels.primitives.counters import finish_unordered, read_epoch
from autotune.kernels.primitives.gated import PLAIN, activated
from autotune.kernels.primitives.known import known
from autotune.kernels.primitives.specialized import (
    FEW_REGISTERS,
    FEWER_REGISTERS,
    MORE_REGISTERS,
    REGISTERS,
    Form,
    consumer_layout,
    empty_step,
    factors_of,
    finished,
    halves,
    load_columns,
    load_rows,
    load_tile,
    new_order,
    new_ring,
    open_stage,
    product,
    seal_if,
    signal_each,
    store_part,
    wait,
)
from autotune.kernels.primitives.tiles import row_of, swizzle

Gather = namedtuple("Gather", "shard inbox arrivals scale_shard scale_inbox rows unit slot target trace")
"""Our shard, [rows, K], the inboxes' memory, [slots, WORLD, rows, K], and the same of scales, of one or K / 128 a row,
or None. A ``unit`` of so many rows has arrived when its counter, of int32 [WORLD, units], has reached the ``target``;
with one OWNER a ``unit`` of so much of K from all ranks, when its counter of [slots, units] has.
"""

Tiles = namedtuple("Tiles", "columns depth own_m tiles_n group_m")
"""The product of each owner's rows is ``own_m`` x ``tiles_n`` tiles."""

Result = namedtuple("Result", "c buffers bias scale_a scale_b")


@gluon.jit
def owned_rows(gather, WORLD: gl.constexpr, OWNERS: gl.constexpr):
    """The rows of a shard, or of all of them."""
    return gather.rows * (WORLD // OWNERS)


@gluon.jit
def tile_at(number, gather, tiles, peers, WORLD: gl.constexpr, OWNERS: gl.constexpr, FORM: gl.constexpr):
    """A tile's owner, its first row within the owner's shard, and its first column."""
    m, n = swizzle(number, OWNERS * tiles.own_m, tiles.tiles_n, tiles.group_m)
    row = row_of(m % tiles.own_m, owned_rows(gather, WORLD, OWNERS), FORM.PARTS * FORM.ROWS)
    return (peers.rank + OWNERS - m // tiles.own_m) % OWNERS, row, n * FORM.COLUMNS


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
    units = gl.cdiv(gather.rows, gather.unit)
    K = tiles.depth // VECTOR * VECTOR  # the compiler forgets what is said of an argument
    ours = (gather.slot * WORLD + peers.rank) * gather.rows
    for number in range((WORLD - 1) * units):
        peer = (peers.rank + 1 + number // units) % WORLD
        unit = number % units
        first = unit * gather.unit
        end = gl.minimum(first + gather.unit, gather.rows)
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
def send_across(gather, tiles, peers, WORLD: gl.constexpr, WARPS: gl.constexpr, SCALES: gl.constexpr):
    """Push this program's share of our shard to all ranks, ourselves too, range by range of K, and signal each."""
    VECTOR: gl.constexpr = 128 // gather.shard.dtype.element_ty.primitive_bitwidth
    LINES: gl.constexpr = 2 * WARPS * 32
    layout: gl.constexpr = gl.BlockedLayout([1, VECTOR], [32, 1], [WARPS, 1], [1, 0])
    single: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    program, programs = gl.program_id(0), gl.num_programs(0)
    ours = (gather.slot * WORLD + peers.rank) * gather.rows
    target = gather.inbox + tl.cast(ours, tl.int64) * tiles.depth
    if SCALES >= 2:
        each = scales_of_a_row(tiles, SCALES)
        for begin in range(program * WARPS * 32, gather.rows * each, programs * WARPS * 32):
            at = begin + gl.arange(0, WARPS * 32, layout=single)
            inside = at < gather.rows * each
            scale = gl.load(gather.scale_shard + at, mask=inside)
            for turn in gl.static_range(1, WORLD + 1):
                peer = (peers.rank + turn) % WORLD
                heap.store(gather.scale_inbox + ours * each + at, scale, peers.rank, peer, peers.bases, mask=inside)
    inner = gl.arange(0, VECTOR, layout=gl.SliceLayout(0, layout))
    width, units = gather.unit // VECTOR, tiles.depth // gather.unit
    for chunk in range(units):
        traces.begin(gather.trace, traces.SENT, chunk, chunk)
        for begin in range(program * LINES, gather.rows * width, programs * LINES):
            line = begin + gl.arange(0, LINES, layout=gl.SliceLayout(1, layout))
            row = line // width
            column = chunk * width + line % width
            inside = (row < gather.rows)[:, None] & (inner < VECTOR)[None, :]
            place = (row * (tiles.depth // VECTOR) + column)[:, None] * VECTOR + inner[None, :]
            value = gl.load(gather.shard + place, mask=inside)
            for turn in gl.static_range(1, WORLD + 1):
                peer = (peers.rank + turn) % WORLD
                heap.store(target + place, value, peers.rank, peer, peers.bases, mask=inside, hint=(1, 16))
        signal_each(gather.arrivals + gather.slot * units + chunk, peers, WORLD, WARPS)
        traces.end(gather.trace, traces.SENT, chunk)


@gluon.jit
def wait_for_tile(gather, source, row, peers, FORM: gl.constexpr):
    """Wait for the units that hold a tile's rows; see ``transfer.wait_for_rows``."""
    units = gl.cdiv(gather.rows, gather.unit)
    late = 0
    last = gl.minimum(row + FORM.PARTS * FORM.ROWS, gather.rows) - 1
    for unit in range(row // gather.unit, last // gather.unit + 1):
        late += wait(gather.arrivals + source * units + unit, gather.target, peers)
    return late + heap.fence_async_proxy(True)


@gluon.jit
def load_as_it_arrives(inbox, b, ring, step, row, column, gather, tiles, peers, FORM: gl.constexpr):
    """``load_tile`` of a tile across shards; the first one's B comes before A, whose ranges are waited for."""
    steps = gl.cdiv(tiles.depth, FORM.DEPTH)
    ahead = gl.minimum(steps, FORM.STAGES)
    units, each = tiles.depth // gather.unit, gl.cdiv(gather.unit, FORM.DEPTH)
    if step == 0:
        for early in range(ahead):
            open_stage(inbox, ring, early, FORM)
            load_columns(b, ring, early, column, tiles.columns, early * FORM.DEPTH, FORM)
    late = 0
    for k in range(steps):
        if step >= ahead:
            open_stage(inbox, ring, step, FORM)
            load_columns(b, ring, step, column, tiles.columns, k * FORM.DEPTH, FORM)
        if (step < steps) & (k % each == 0):
            chunk = k // each
            traces.begin(gather.trace, traces.WAIT, chunk, chunk)
            late += wait(gather.arrivals + gather.slot * units + chunk, gather.target, peers)
            late += heap.fence_async_proxy(True)
            traces.end(gather.trace, traces.WAIT, chunk)
        load_rows(inbox, ring, step, row + late, k * FORM.DEPTH, FORM)
        step += 1
    return step


@gluon.jit
def produce(
    own, inbox, b, ring, gather, tiles, tail, peers, WORLD: gl.constexpr, OWNERS: gl.constexpr, SPLITS: gl.constexpr,
    FORM: gl.constexpr,
):  # fmt: skip
    """Load this program's tiles: ours from the shard, the others from the inbox once their rows have arrived."""
    step = 0
    waits = 0
    for number in range(gl.program_id(0), items_of(tiles, OWNERS, SPLITS), gl.num_programs(0)):
        item = item_at(number, tiles, OWNERS, SPLITS, FORM)
        source, row, column = tile_at(item.tile, gather, tiles, peers, WORLD, OWNERS, FORM)
        begin = item.begin * FORM.DEPTH
        end = gl.minimum(begin + item.steps * FORM.DEPTH, tiles.depth)
        if OWNERS == 1:
            place = gather.slot * WORLD * gather.rows + row
            step = load_as_it_arrives(inbox, b, ring, step, place, column, gather, tiles, peers, FORM)
        elif source == peers.rank:
            step = load_tile(own, b, ring, step, row, column, tiles.columns, end, FORM, 0, begin)
        else:
            traces.begin(gather.trace, traces.WAIT, waits, item.tile)
            late = wait_for_tile(gather, source, row, peers, FORM)
            traces.end(gather.trace, traces.WAIT, waits)
            waits += 1
            place = (gather.slot * WORLD + source) * gather.rows + row + late
            step = load_tile(inbox, b, ring, step, place, column, tiles.columns, end, FORM, 0, begin)
        if SPLITS > 1:
            if (item.tail >= 0) & (item.part == 0):
                wait(tail.stored + item.tail, tail.target, peers)
                empty_step(ring, step, FORM)


@gluon.jit
def scales_of(source, gather, tiles, peers, WORLD: gl.constexpr, OWNERS: gl.constexpr, SCALES: gl.constexpr):
    """A rank's scales of rows of A: our own, or those in the inbox."""
    of_rows = gather.scale_shard
    if (OWNERS == 1) | (source != peers.rank):
        of_rows = gather.scale_inbox
        of_rows += (gather.slot * WORLD + source) * gather.rows * scales_of_a_row(tiles, SCALES)
    return of_rows


@gluon.jit
def consume(
    ring, order, result, gather, tiles, tail, peers, WHICH: gl.constexpr, WORLD: gl.constexpr, OWNERS: gl.constexpr,
    SPLITS: gl.constexpr, SCALES: gl.constexpr, BIAS: gl.constexpr, EPILOGUE: gl.constexpr, FORM: gl.constexpr,
):  # fmt: skip
    """Multiply and store our part of each tile or, in pingpong, every other tile."""
    owned = owned_rows(gather, WORLD, OWNERS)
    layout: gl.constexpr = consumer_layout(ring.a.dtype, FORM.COLUMNS)
    wide: gl.constexpr = consumer_layout(ring.a.dtype, FORM.PIECES * FORM.COLUMNS)
    steps = gl.cdiv(tiles.depth, FORM.DEPTH)
    count = WHICH if FORM.TURNS == 2 else 0
    PART: gl.constexpr = WHICH if FORM.TURNS == 1 else 0
    programs = gl.num_programs(0)
    first = gl.program_id(0) + count * programs
    for number in range(first, items_of(tiles, OWNERS, SPLITS), FORM.TURNS * programs):
        item = item_at(number, tiles, OWNERS, SPLITS, FORM)
        source, row, column = tile_at(item.tile, gather, tiles, peers, WORLD, OWNERS, FORM)
        row += PART * FORM.ROWS
        if FORM.TURNS == 2 or WHICH == 0:
            traces.begin(gather.trace, traces.TILE, count, item.tile)
        factors = None
        if SCALES == 3:
            of_blocks = scales_of(source, gather, tiles, peers, WORLD, OWNERS, SCALES)
            given = (of_blocks + item.begin, row, owned, result.scale_b + item.begin)
            factors = factors_of(*given, column, tiles.columns, tiles.depth, wide, FORM)
        # The items before it are whole tiles.
        total = product(ring, order, count, count * steps, item.steps, factors, WHICH, wide, FORM)
        if SPLITS > 1:
            total = joined(total, item, tail, ring, count * steps + item.steps, PART, SPLITS, wide, FORM)
        if item.part == 0:
            rows = row + gl.arange(0, FORM.ROWS, layout=gl.SliceLayout(1, layout))
            columns = column + gl.arange(0, FORM.COLUMNS, layout=gl.SliceLayout(0, layout))
            places = (rows, rows < owned, columns, columns < tiles.columns)
            of_rows = None
            if SCALES == 2:
                of_rows = scales_of(source, gather, tiles, peers, WORLD, OWNERS, SCALES)
            if EPILOGUE == PLAIN:
                value = finished(total, result, of_rows, places, 0, SCALES, BIAS)
            else:
                gate, up = halves(total, layout)
                gate = finished(gate, result, of_rows, places, 0, SCALES, BIAS)
                up = finished(up, result, of_rows, places, tiles.columns, SCALES, BIAS)
                value = activated(gate, up, EPILOGUE)
            store_part(value, result.c, result.buffers.index(WHICH), source * owned + row, column)
        if FORM.TURNS == 2 or WHICH == 0:
            traces.end(gather.trace, traces.TILE, count)
        count += FORM.TURNS
    # All of it, not only the reads: a NaN of ``seal`` comes after.
    tl.inline_asm_elementwise(
        "cp.async.bulk.wait_group 0; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )


@gluon.jit(do_not_specialize=["M", "N", "K", "shard_rows", "unit", "group_m", "rank", "spin_limit"])
def specialized_kernel(
    a, inbox, b, c, shard, inbox_pointer, result, bias, scale_a, scale_b, scale_shard, scale_inbox, sums, stored,
    M, N, K, shard_rows, unit, group_m, rank, heap_bases, epoch_counter, arrivals, trace, status, spin_limit,
    WORLD: gl.constexpr, OWNERS: gl.constexpr, SPLITS: gl.constexpr, SLOTS: gl.constexpr, PARTS: gl.constexpr,
    TURNS: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr,
    PROMOTE: gl.constexpr, B_TRANSPOSED: gl.constexpr, SCALES: gl.constexpr, BIAS: gl.constexpr,
    EPILOGUE: gl.constexpr, SENDING: gl.constexpr, num_warps: gl.constexpr,
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
    if OWNERS == 1:  # of all ranks, in the launches that had this slot
        target = ((epoch // SLOTS + 1) * WORLD * gl.num_programs(0)).to(gl.int32)
    gather = Gather(
        shard, inbox_pointer, arrivals, scale_shard, scale_inbox, shard_rows, unit, slot, target, trace
    )  # fmt: skip
    tiles = Tiles(N, K, gl.cdiv(owned_rows(gather, WORLD, OWNERS), PARTS * ROWS), gl.cdiv(N, COLUMNS), group_m)
    ring = new_ring(a, b, FORM)
    order = new_order(ring, FORM)
    buffers = gl.allocate_shared_memory(c.dtype, [2, ROWS, c.block_type.shape[1]], c.layout)
    out = Result(c, buffers, bias, scale_a, scale_b)
    tail = Tail(sums, stored, ((epoch + 1) * (SPLITS - 1) * PARTS).to(gl.int32))
    multiplying: gl.constexpr = FEWER_REGISTERS if OWNERS == 1 else REGISTERS
    others: gl.constexpr = MORE_REGISTERS if OWNERS == 1 else FEW_REGISTERS
    gl.warp_specialize(
        [
            (
                consume,
                (ring, order, out, gather, tiles, tail, peers, 0, WORLD, OWNERS, SPLITS, SCALES, BIAS, EPILOGUE, FORM),
            ),
            (
                consume,
                (ring, order, out, gather, tiles, tail, peers, 1, WORLD, OWNERS, SPLITS, SCALES, BIAS, EPILOGUE, FORM),
            ),
            (produce, (a, inbox, b, ring, gather, tiles, tail, peers, WORLD, OWNERS, SPLITS, FORM)),
            (send_across if OWNERS == 1 else send, (gather, tiles, peers, WORLD, SENDING, SCALES)),
        ],
        [num_warps, 1, SENDING],
        [multiplying, others, others],
    )
    in_vain = heap.timed_out(status)
    finish_unordered(epoch_counter, gl.num_programs(0), gl.program_id(0) == 0)
    seal_if(in_vain, result, tl.cast(M, tl.int64) * N, num_warps)
