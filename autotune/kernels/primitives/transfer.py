"""Moving a shard between ranks in units: pushing, fetching, and waiting for what has arrived.

A shard is [rows, width], contiguous; in an inbox its rows lie ``pitch`` elements apart, from element ``place`` on. It
travels in units, the granularity: ``transfer_rows`` rows of one of CHUNKS equal ranges of columns, all rows of a range
before the next range. All communicating programs share each unit step by step and each signals the unit once, so a
unit has arrived when its counter has grown by their number (``parts``). Counters are never reset (see counters.py):
``epoch`` waits for (epoch + 1) * parts. ``arrivals`` is int32 [CHUNKS, world_size, units], a row for each
source.

Scales of the shard's rows, where it has any (``scales``, fp32 [rows, scale_columns]), travel with the first range of
columns of their rows: before its signal, which follows them, and so before any later range's. Their inbox has its own
``scale_place`` and ``scale_pitch``.

A step is a block of STEP_ROWS x STEP_COLUMNS elements; the columns are a power of two that divides the range where
there is one large enough, so that a step's rows are whole.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.primitives import trace as traces


@triton.jit
def _step(
    number, across, first_row, end_row, first_column, end_column, width, pitch,
    STEP_ROWS: tl.constexpr, STEP_COLUMNS: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """A step's offsets of reading from the shard and of writing to its place, and the mask of both: int64, int64, bool
    [R, C].
    """
    rows = first_row + number // across * STEP_ROWS + tl.arange(0, STEP_ROWS)[:, None]
    begin = tl.multiple_of(first_column, VECTOR) + number % across * STEP_COLUMNS
    columns = begin + tl.arange(0, STEP_COLUMNS)[None, :]
    inside = (rows < end_row) & (columns < tl.multiple_of(end_column, VECTOR))
    wide = rows.to(tl.int64)
    # A width of one is a constant to the compiler, which has no multiples.
    width, pitch = tl.cast(width, tl.int32), tl.cast(pitch, tl.int32)
    return wide * tl.multiple_of(width, VECTOR) + columns, wide * tl.multiple_of(pitch, VECTOR) + columns, inside


SCALE_STEP = tl.constexpr(256)
"""Scales that a program moves at once."""


@triton.jit
def _scale_step(begin, end, columns, pitch):
    """SCALE_STEP scales, numbered from ``begin`` on: their offsets where they are and where they go, and the mask."""
    number = begin + tl.arange(0, SCALE_STEP)
    return number, (number // columns).to(tl.int64) * pitch + number % columns, number < end


@triton.jit
def push_shard(
    shard, inbox, place, arrivals, rows, width, pitch, transfer_rows, part, parts, rank, heap_bases,
    WORLD: tl.constexpr, CHUNKS: tl.constexpr, STEP_ROWS: tl.constexpr, STEP_COLUMNS: tl.constexpr,
    VECTOR: tl.constexpr, HINT: tl.constexpr, ROTATE: tl.constexpr, FIRST: tl.constexpr,
    scales=None, scale_inbox=None, scale_place=0, scale_columns=1, scale_pitch=1, trace=None,
):  # fmt: skip
    """Store our shard at ``place`` of every peer's inbox, unit by unit, and signal each unit.

    ROTATE: one peer after the other, rank r starting with r + 1, so that no two ranks write to one peer at a time;
    otherwise each step is loaded once and stored to all. ``part`` of ``parts`` are the communicating programs. FIRST
    is 0 to include our own inbox, 1 to leave it out.
    """
    units = tl.cdiv(rows, transfer_rows)
    across = tl.cdiv(width // CHUNKS, STEP_COLUMNS)
    turns: tl.constexpr = WORLD - FIRST if ROTATE else 1
    for number in range(CHUNKS * turns * units):
        chunk = number // (turns * units)
        turn = number // units % turns
        unit = number % units
        first = unit * transfer_rows
        end = tl.minimum(first + transfer_rows, rows)
        left = chunk * (width // CHUNKS)
        counter = arrivals + (chunk * WORLD + rank) * units + unit
        traces.begin(trace, traces.SENT, number, chunk * units + unit)
        for step in range(part, tl.cdiv(end - first, STEP_ROWS) * across, parts):
            here, there, inside = _step(
                step, across, first, end, left, left + width // CHUNKS, width, pitch, STEP_ROWS, STEP_COLUMNS, VECTOR
            )
            value = tl.load(shard + here, mask=inside)
            if ROTATE:
                peer = (rank + FIRST + turn) % WORLD
                heap.store(inbox + place + there, value, rank, peer, heap_bases, mask=inside, hint=(1, HINT))
            else:
                for onwards in tl.static_range(FIRST, WORLD):
                    peer = (rank + onwards) % WORLD
                    heap.store(inbox + place + there, value, rank, peer, heap_bases, mask=inside, hint=(1, HINT))
        if scales is not None:
            if (chunk == 0) & (unit % parts == part):
                for begin in range(first * scale_columns, end * scale_columns, SCALE_STEP):
                    here, there, inside = _scale_step(begin, end * scale_columns, scale_columns, scale_pitch)
                    scale = tl.load(scales + here, mask=inside)
                    for onwards in tl.static_range(1 if ROTATE else FIRST, 2 if ROTATE else WORLD):
                        peer = (rank + FIRST + turn if ROTATE else rank + onwards) % WORLD
                        heap.store(scale_inbox + scale_place + there, scale, rank, peer, heap_bases, mask=inside)
        if ROTATE:
            heap.signal(counter, (rank + FIRST + turn) % WORLD, rank, heap_bases)
        else:
            heap.signal_each(counter, rank, heap_bases, WORLD, FIRST)
        traces.end(trace, traces.SENT, number)


@triton.jit
def fetch_shards(
    shard, inbox, place, apart, arrivals, rows, width, pitch, transfer_rows, part, parts, rank, heap_bases,
    ready, done, epoch, status, spin_limit,
    WORLD: tl.constexpr, CHUNKS: tl.constexpr, STEP_ROWS: tl.constexpr, STEP_COLUMNS: tl.constexpr,
    VECTOR: tl.constexpr, HINT: tl.constexpr, ROTATE: tl.constexpr, FIRST: tl.constexpr,
    scales=None, scale_inbox=None, scale_place=0, scale_apart=0, scale_columns=1, scale_pitch=1,
):  # fmt: skip
    """Load every peer's shard into our own inbox, unit by unit, and signal ourselves.

    The shard of rank r goes to element ``place`` + r * ``apart``. ROTATE: one peer after the other, rank r starting
    with r - 1; otherwise unit 0 of every peer, then unit 1, …. ``ready`` and ``done``, int32 [world_size], are the
    counters of ``arrive`` and ``wait_for_all``.
    """
    units = tl.cdiv(rows, transfer_rows)
    across = tl.cdiv(width // CHUNKS, STEP_COLUMNS)
    peers: tl.constexpr = WORLD - FIRST
    for number in range(CHUNKS * peers * units):
        chunk = number // (peers * units)
        turn = number % (peers * units)
        if ROTATE:
            peer = (rank + WORLD - FIRST - turn // units) % WORLD
            unit = turn % units
        else:
            peer = (rank + WORLD - FIRST - turn % peers) % WORLD
            unit = turn // peers
        late = heap.wait(ready + peer, epoch + 1, status, spin_limit)
        first = unit * transfer_rows
        end = tl.minimum(first + transfer_rows, rows)
        left = chunk * (width // CHUNKS)
        target = inbox + place + peer * tl.cast(apart, tl.int64)
        for step in range(part + late, tl.cdiv(end - first, STEP_ROWS) * across, parts):
            here, there, inside = _step(
                step, across, first, end, left, left + width // CHUNKS, width, pitch, STEP_ROWS, STEP_COLUMNS, VECTOR
            )
            value = heap.load(shard + here, rank, peer, heap_bases, mask=inside, hint=(1, HINT))
            tl.store(target + there, value, mask=inside)
        if scales is not None:
            if (chunk == 0) & (unit % parts == part):
                scale_target = scale_inbox + scale_place + peer * tl.cast(scale_apart, tl.int64)
                for begin in range(first * scale_columns + late, end * scale_columns, SCALE_STEP):
                    here, there, inside = _scale_step(begin, end * scale_columns, scale_columns, scale_pitch)
                    scale = heap.load(scales + here, rank, peer, heap_bases, mask=inside)
                    tl.store(scale_target + there, scale, mask=inside)
        heap.signal(arrivals + (chunk * WORLD + peer) * units + unit, rank, rank, heap_bases)
    heap.signal_each(done + rank, rank, heap_bases, WORLD, 0)


@triton.jit
def wait_for_rows(
    arrivals, source, first, last, rows, transfer_rows, target, status, spin_limit, PROXY_FENCE: tl.constexpr
):
    """Wait for the units of ``source``'s shard that hold its rows ``first`` to ``last`` (both included).

    Returns an int32 that is zero unless the wait timed out, for the caller to add to the coordinates of its loads: they
    must not be moved above the wait.
    """
    units = tl.cdiv(rows, transfer_rows)
    late = 0
    for unit in range(first // transfer_rows, tl.minimum(last, rows - 1) // transfer_rows + 1):
        late += heap.wait(arrivals + source * units + unit, target, status, spin_limit)
    return late + heap.fence_async_proxy(PROXY_FENCE)


@triton.jit
def wait_for_rows_of_each(
    arrivals, first_source, last_source, apart, first, last, rows, transfer_rows, target, status, spin_limit,
    WORLD: tl.constexpr, PROXY_FENCE: tl.constexpr,
):  # fmt: skip
    """Wait for the rows ``first`` to ``last`` of the gathered matrix in the shards of several sources at once.

    The shard of source s begins at row s * ``apart``: ``rows`` in rows layout, 0 where every shard has all rows.
    Returns what ``wait_for_rows`` does.
    """
    units = tl.cdiv(rows, transfer_rows)
    sources = tl.arange(0, triton.next_power_of_2(WORLD))
    wanted = (sources >= first_source) & (sources <= last_source)
    first_unit = tl.maximum(first - sources * apart, 0) // transfer_rows
    last_unit = tl.minimum(last - sources * apart, rows - 1) // transfer_rows
    late = 0
    for step in range(tl.max(tl.where(wanted, last_unit - first_unit, -1), axis=0) + 1):
        unit = first_unit + step
        counters = arrivals + sources * units + unit
        late += heap.wait_each(counters, wanted & (unit <= last_unit), target, status, spin_limit)
    return late + heap.fence_async_proxy(PROXY_FENCE)
