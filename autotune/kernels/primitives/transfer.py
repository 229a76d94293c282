"""Moving a shard between ranks in units: pushing, fetching, and waiting for what has arrived.

A shard's rows are contiguous; in an inbox they lie ``pitch`` elements apart. It travels in units, the granularity:
``transfer_rows`` rows of one of CHUNKS equal ranges of columns, all rows of a range before the next range. All
communicating programs share each unit step by step and each signals the unit once, so a unit has arrived when its
counter has grown by their number (``parts``). Counters are never reset (see counters.py): ``epoch`` waits for
(epoch + 1) * parts.

Scales of the shard's rows, where it has any, travel with the first range of columns of their rows: before its signal,
which follows them, and so before any later range's.

A step is a block of STEP_ROWS x STEP_COLUMNS elements; the columns are a power of two that divides the range where
there is one large enough, so that a step's rows are whole.
"""

from __future__ import annotations

from collections import namedtuple

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.primitives import trace as traces

SCALE_STEP = tl.constexpr(256)
"""Scales that a program moves at once."""

Shard = namedtuple("Shard", "data rows width scales scale_columns", defaults=(None, 1))
"""Data [rows, width], and scales of its rows: fp32 [rows, scale_columns], or None. The width is ``in_units``, as is the
inbox's pitch: a step's elements are moved 16 bytes at once only where the compiler knows that rows begin there.
"""

Inbox = namedtuple("Inbox", "data slot rows pitch arrivals transfer_rows scales scale_pitch", defaults=(None, 1))
"""Where shards arrive: slots of a whole matrix [rows, pitch], and of its scales. ``arrivals`` is int32 [CHUNKS, WORLD,
units].
"""

Steps = namedtuple("Steps", "WORLD ROWS CHUNKS STEP_ROWS STEP_COLUMNS VECTOR HINT ROTATE FIRST")
"""How a shard, ROWS of the matrix or else columns, moves. All rows begin at multiples of VECTOR elements, HINT bytes.
ROTATE: one peer after the other, no two ranks at one peer; else all peers at once, step by step or unit by unit. FIRST
is 1 to leave our own inbox out, else 0.
"""


@triton.jit
def in_units(value, UNIT: tl.constexpr):
    """A multiple of UNIT, as such: the compiler forgets what ``tl.multiple_of`` says of a kernel's argument."""
    return value // UNIT * UNIT


@triton.jit
def begin_of(rank, rows, columns, slot, all_rows, pitch, ROWS: tl.constexpr):
    """The element of an inbox at which a rank's shard begins, of ``rows`` or ``columns`` of its own: int64."""
    wide = tl.cast(pitch, tl.int64)
    return slot * all_rows * wide + rank * (rows * wide if ROWS else columns)


@triton.jit
def _data_place(rank, shard, inbox, FORM: tl.constexpr):
    return inbox.data + begin_of(rank, shard.rows, shard.width, inbox.slot, inbox.rows, inbox.pitch, FORM.ROWS)


@triton.jit
def _scale_place(rank, shard, inbox, FORM: tl.constexpr):
    columns = shard.scale_columns
    return inbox.scales + begin_of(rank, shard.rows, columns, inbox.slot, inbox.rows, inbox.scale_pitch, FORM.ROWS)


@triton.jit
def _step(number, across, first_row, end_row, first_column, shard, inbox, FORM: tl.constexpr):
    """A step's offsets of reading from the shard and of writing to its place, and the mask of both: int64, int64, bool
    [R, C].
    """
    rows = first_row + number // across * FORM.STEP_ROWS + tl.arange(0, FORM.STEP_ROWS)[:, None]
    begin = tl.multiple_of(first_column, FORM.VECTOR) + number % across * FORM.STEP_COLUMNS
    columns = begin + tl.arange(0, FORM.STEP_COLUMNS)[None, :]
    end_column = first_column + shard.width // FORM.CHUNKS
    inside = (rows < end_row) & (columns < tl.multiple_of(end_column, FORM.VECTOR))
    wide = rows.to(tl.int64)
    return wide * shard.width + columns, wide * inbox.pitch + columns, inside


@triton.jit
def _scale_step(begin, end, columns, pitch):
    """SCALE_STEP scales, numbered from ``begin`` on: their offsets where they are and where they go, and the mask."""
    number = begin + tl.arange(0, SCALE_STEP)
    return number, (number // columns).to(tl.int64) * pitch + number % columns, number < end


@triton.jit
def push_shard(shard, inbox, part, parts, peers, FORM: tl.constexpr, trace=None):
    """Store our shard into every peer's inbox, unit by unit, and signal each unit. ``part`` of ``parts`` are the
    communicating programs. Without ROTATE each step is loaded once and stored to all.
    """
    WORLD: tl.constexpr = FORM.WORLD
    FIRST: tl.constexpr = FORM.FIRST
    units = tl.cdiv(shard.rows, inbox.transfer_rows)
    across = tl.cdiv(shard.width // FORM.CHUNKS, FORM.STEP_COLUMNS)
    turns: tl.constexpr = WORLD - FIRST if FORM.ROTATE else 1
    target = _data_place(peers.rank, shard, inbox, FORM)
    if shard.scales is not None:
        scale_target = _scale_place(peers.rank, shard, inbox, FORM)
    for number in range(FORM.CHUNKS * turns * units):
        chunk = number // (turns * units)
        turn = number // units % turns
        unit = number % units
        first = unit * inbox.transfer_rows
        end = tl.minimum(first + inbox.transfer_rows, shard.rows)
        left = chunk * (shard.width // FORM.CHUNKS)
        counter = inbox.arrivals + (chunk * WORLD + peers.rank) * units + unit
        traces.begin(trace, traces.SENT, number, chunk * units + unit)
        for step in range(part, tl.cdiv(end - first, FORM.STEP_ROWS) * across, parts):
            here, there, inside = _step(step, across, first, end, left, shard, inbox, FORM)
            value = tl.load(shard.data + here, mask=inside)
            if FORM.ROTATE:
                peer = (peers.rank + FIRST + turn) % WORLD
                heap.store(target + there, value, peers.rank, peer, peers.bases, mask=inside, hint=(1, FORM.HINT))
            else:
                for onwards in tl.static_range(FIRST, WORLD):
                    peer = (peers.rank + onwards) % WORLD
                    heap.store(target + there, value, peers.rank, peer, peers.bases, mask=inside, hint=(1, FORM.HINT))
        if shard.scales is not None:
            if (chunk == 0) & (unit % parts == part):
                for begin in range(first * shard.scale_columns, end * shard.scale_columns, SCALE_STEP):
                    here, there, inside = _scale_step(
                        begin, end * shard.scale_columns, shard.scale_columns, inbox.scale_pitch
                    )
                    scale = tl.load(shard.scales + here, mask=inside)
                    for onwards in tl.static_range(1 if FORM.ROTATE else FIRST, 2 if FORM.ROTATE else WORLD):
                        peer = (peers.rank + FIRST + turn if FORM.ROTATE else peers.rank + onwards) % WORLD
                        heap.store(scale_target + there, scale, peers.rank, peer, peers.bases, mask=inside)
        if FORM.ROTATE:
            heap.signal(counter, (peers.rank + FIRST + turn) % WORLD, peers)
        else:
            heap.signal_each(counter, peers, WORLD, FIRST)
        traces.end(trace, traces.SENT, number)


@triton.jit
def fetch_shards(shard, inbox, ready, done, epoch, part, parts, peers, FORM: tl.constexpr):
    """Load every peer's shard into our own inbox, unit by unit, and signal ourselves. ``ready`` and ``done``, int32
    [WORLD], are the counters of ``arrive`` and ``wait_for_all``. Without ROTATE: unit 0 of every peer, then unit 1, ….
    """
    WORLD: tl.constexpr = FORM.WORLD
    FIRST: tl.constexpr = FORM.FIRST
    units = tl.cdiv(shard.rows, inbox.transfer_rows)
    across = tl.cdiv(shard.width // FORM.CHUNKS, FORM.STEP_COLUMNS)
    others: tl.constexpr = WORLD - FIRST
    for number in range(FORM.CHUNKS * others * units):
        chunk = number // (others * units)
        turn = number % (others * units)
        if FORM.ROTATE:
            peer = (peers.rank + WORLD - FIRST - turn // units) % WORLD
            unit = turn % units
        else:
            peer = (peers.rank + WORLD - FIRST - turn % others) % WORLD
            unit = turn // others
        late = heap.wait(ready + peer, epoch + 1, peers)
        first = unit * inbox.transfer_rows
        end = tl.minimum(first + inbox.transfer_rows, shard.rows)
        left = chunk * (shard.width // FORM.CHUNKS)
        target = _data_place(peer, shard, inbox, FORM)
        for step in range(part + late, tl.cdiv(end - first, FORM.STEP_ROWS) * across, parts):
            here, there, inside = _step(step, across, first, end, left, shard, inbox, FORM)
            value = heap.load(shard.data + here, peers.rank, peer, peers.bases, mask=inside, hint=(1, FORM.HINT))
            tl.store(target + there, value, mask=inside)
        if shard.scales is not None:
            if (chunk == 0) & (unit % parts == part):
                scale_target = _scale_place(peer, shard, inbox, FORM)
                for begin in range(first * shard.scale_columns + late, end * shard.scale_columns, SCALE_STEP):
                    here, there, inside = _scale_step(
                        begin, end * shard.scale_columns, shard.scale_columns, inbox.scale_pitch
                    )
                    scale = heap.load(shard.scales + here, peers.rank, peer, peers.bases, mask=inside)
                    tl.store(scale_target + there, scale, mask=inside)
        heap.signal(inbox.arrivals + (chunk * WORLD + peer) * units + unit, peers.rank, peers)
    heap.signal_each(done + peers.rank, peers, WORLD, 0)


@triton.jit
def wait_for_rows(arrivals, source, first, last, rows, transfer_rows, target, peers, PROXY_FENCE: tl.constexpr):
    """Wait for the units of ``source``'s shard that hold its rows ``first`` to ``last`` (both included).

    Returns an int32 that is zero unless the wait timed out, for the caller to add to the coordinates of its loads: they
    must not be moved above the wait.
    """
    units = tl.cdiv(rows, transfer_rows)
    late = 0
    for unit in range(first // transfer_rows, tl.minimum(last, rows - 1) // transfer_rows + 1):
        late += heap.wait(arrivals + source * units + unit, target, peers)
    return late + heap.fence_async_proxy(PROXY_FENCE)


@triton.jit
def wait_for_rows_of_each(
    arrivals, first_source, last_source, apart, first, last, rows, transfer_rows, target, peers, WORLD: tl.constexpr,
    PROXY_FENCE: tl.constexpr,
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
        late += heap.wait_each(counters, wanted & (unit <= last_unit), target, peers)
    return late + heap.fence_async_proxy(PROXY_FENCE)
