"""Moving a shard between ranks in units: pushing, fetching, and the counters that say what has arrived.

A shard is ``rows`` x ``width`` elements, contiguous. It travels in units of ``unit_rows`` rows, the granularity: all
communicating programs share each unit step by step and each signals the unit once, so a unit has arrived when its
counter has grown by their number (``parts``). Counters are never reset: launch number ``epoch`` (from 0, kept in the
heap's ``state``) waits for (epoch + 1) * parts. ``arrivals`` is int32 [world_size, units], one row per source.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap


@triton.jit
def push_shard(
    shard, inbox, slot_offset, arrivals, rows, width, unit_rows, part, parts, rank, heap_bases,
    WORLD: tl.constexpr, STEP: tl.constexpr, VECTOR: tl.constexpr, HINT: tl.constexpr,
    ROTATE: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """Store our shard into every peer's inbox, unit by unit, and signal each unit.

    ``inbox`` is [slots, world_size, rows, width] in every heap. ROTATE: one peer after the other, rank r starting with
    r + 1, so that no two ranks write to one peer at a time; otherwise each step is loaded once and stored to all.
    ``part`` of ``parts`` are the communicating programs. FIRST is 0 to include our own inbox, 1 to leave it out.
    """
    units = tl.cdiv(rows, unit_rows)
    elements = tl.cast(rows, tl.int64) * width
    place = inbox + slot_offset + rank * elements
    if ROTATE:
        for turn in range((WORLD - FIRST) * units):
            peer = (rank + FIRST + turn // units) % WORLD
            unit = turn % units
            begin = tl.cast(unit, tl.int64) * unit_rows * width
            end = tl.multiple_of(tl.minimum(begin + tl.cast(unit_rows, tl.int64) * width, elements), VECTOR)
            for offset in range(begin + part * STEP, end, parts * STEP):
                index = tl.multiple_of(offset, VECTOR) + tl.arange(0, STEP)
                value = tl.load(shard + index, mask=index < end)
                heap.store(place + index, value, rank, peer, heap_bases, mask=index < end, hint=HINT)
            heap.signal(arrivals + rank * units + unit, peer, rank, heap_bases)
    else:
        for unit in range(units):
            begin = tl.cast(unit, tl.int64) * unit_rows * width
            end = tl.multiple_of(tl.minimum(begin + tl.cast(unit_rows, tl.int64) * width, elements), VECTOR)
            for offset in range(begin + part * STEP, end, parts * STEP):
                index = tl.multiple_of(offset, VECTOR) + tl.arange(0, STEP)
                value = tl.load(shard + index, mask=index < end)
                for turn in tl.static_range(FIRST, WORLD):
                    peer = (rank + turn) % WORLD
                    heap.store(place + index, value, rank, peer, heap_bases, mask=index < end, hint=HINT)
            for turn in tl.static_range(FIRST, WORLD):
                heap.signal(arrivals + rank * units + unit, (rank + turn) % WORLD, rank, heap_bases)


@triton.jit
def fetch_shards(
    shard, inbox, arrivals, rows, width, unit_rows, part, parts, rank, heap_bases,
    ready, done, epoch, status, spin_limit,
    WORLD: tl.constexpr, STEP: tl.constexpr, VECTOR: tl.constexpr, HINT: tl.constexpr,
    ROTATE: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """Load every peer's shard into our own inbox [world_size, rows, width], unit by unit, and signal ourselves.

    ROTATE: one peer after the other, rank r starting with r - 1; otherwise unit 0 of every peer, then unit 1, ….
    ``ready`` and ``done``, int32 [world_size], are the counters of ``announce_ready`` and ``wait_until_read``.
    """
    units = tl.cdiv(rows, unit_rows)
    elements = tl.cast(rows, tl.int64) * width
    peers: tl.constexpr = WORLD - FIRST
    for turn in range(peers * units):
        if ROTATE:
            peer = (rank + WORLD - FIRST - turn // units) % WORLD
            unit = turn % units
        else:
            peer = (rank + WORLD - FIRST - turn % peers) % WORLD
            unit = turn // peers
        late = heap.wait(ready + peer, epoch + 1, status, spin_limit)
        begin = tl.cast(unit, tl.int64) * unit_rows * width
        end = tl.multiple_of(tl.minimum(begin + tl.cast(unit_rows, tl.int64) * width, elements), VECTOR)
        place = inbox + peer * elements
        for offset in range(begin + (part + late) * STEP, end, parts * STEP):
            index = tl.multiple_of(offset, VECTOR) + tl.arange(0, STEP)
            value = heap.load(shard + index, rank, peer, heap_bases, mask=index < end, hint=HINT)
            tl.store(place + index, value, mask=index < end)
        heap.signal(arrivals + peer * units + unit, rank, rank, heap_bases)
    for turn in range(WORLD):
        heap.signal(done + rank, (rank + turn) % WORLD, rank, heap_bases)


@triton.jit
def wait_for_rows(
    arrivals, source, first, last, rows, unit_rows, target, status, spin_limit, PROXY_FENCE: tl.constexpr
):
    """Wait for the units of ``source``'s shard that hold its rows ``first`` to ``last`` (both included).

    Returns an int32 that is zero unless the wait gave up, for the caller to add to the coordinates of its loads: they
    must not be moved above the wait.
    """
    units = tl.cdiv(rows, unit_rows)
    late = 0
    for unit in range(first // unit_rows, tl.minimum(last, rows - 1) // unit_rows + 1):
        late += heap.wait(arrivals + source * units + unit, target, status, spin_limit)
    return late + heap.fence_async_proxy(PROXY_FENCE)
