"""After the attention: the reduction of its splits, the exchange between the ranks, the combination.

A unit's way: its splits are attended to, in any order; then it is reduced here, delivered to who combines it (every
rank, or one: with ``exchange=two_shot`` rank unit % WORLD, with ``result=heads`` the owner of its heads), combined
there, and with ``two_shot`` returned to every rank. Where heads have owners (OWNED, heads per rank, is not 0), records
have a block for each of them, and a unit's heads have one owner: a constraint of the space.

Launch after launch without a barrier. Inbox and outbox have two slots, used in turn (epoch & 1). A rank that delivers
in epoch e has finished its launch e - 1, hence held its whole result of it, which is not empty, hence whoever combined
that had every rank's partial results of e - 1, hence every rank had begun e - 1 and finished e - 2, whose programs were
the slot's last readers. Counters only grow, by one a launch (``arrived`` by the number of splits), and may wrap around;
so may epochs. Every program reads the epoch before all else; the last of those that combine, or that pass where others
do, advances it, when all splits of all units have arrived, hence when nobody has still to read it. What a slot still
holds as LL words (``primitives/ll.py``) is of e - 2. Sentinel words (``primitives/sentinel.py``) are read by one
program each, the one that combines their unit; it empties them, in e - 2 at the latest: so the slot is empty in e.

No wait can starve its producer. Programs wait only for units of their own number, or for splits of it. What attends
never waits, and its programs have lower ids than those that wait behind them, so are dispatched first; where the last
split's program goes on, all splits of its unit have begun. So look at the lowest unit that is unfinished on some rank:
lower ones hold no place any more, higher ones were not dispatched before it, thus its programs are all running, and
they deliver before they wait. The interpreter, one program after another, goes the same way.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.primitives.ll import ll_flag, ll_pack, ll_unpack, ll_wait
from autotune.kernels.primitives.sentinel import (
    sentinel_bits,
    sentinel_empty,
    sentinel_read,
    sentinel_take,
    sentinel_wait,
)
from autotune.kernels.primitives.softmax import finalize, merge_parts, update

KEEP = tl.constexpr(0)
"""Destination of a reduced unit: our own records; every rank whose result it belongs to, also as LL or as sentinel
words; rank unit % WORLD."""
ONE_SHOT = tl.constexpr(1)
ONE_SHOT_LL = tl.constexpr(2)
TWO_SHOT = tl.constexpr(3)
ONE_SHOT_SENTINEL = tl.constexpr(4)


@triton.jit
def rows_of_unit(
    unit, heads_of_group, UNITS: tl.constexpr, BLOCKS: tl.constexpr, HPP: tl.constexpr, TRANSFER_HEADS: tl.constexpr
):  # fmt: skip
    """First row of a unit, and the row after its last; empty if the group's heads are used up."""
    block = unit // UNITS
    head = block % BLOCKS * HPP + unit % UNITS * TRANSFER_HEADS
    first = block // BLOCKS * heads_of_group
    end = tl.minimum(tl.minimum(heads_of_group, (block % BLOCKS + 1) * HPP), head + TRANSFER_HEADS)
    return first + head, first + end


@triton.jit
def home_of_unit(first, WORLD: tl.constexpr, OWNED: tl.constexpr):
    """The owner of a unit's heads, and the offset of its row numbers over those in the owner's result. ``first``: the
    unit's first row. 0 and 0 where every rank gets all heads.
    """
    owner = 0
    excess = 0
    if OWNED > 0:
        owner = first // OWNED % WORLD
        excess = first - first // (WORLD * OWNED) * OWNED - first % OWNED
    return owner, excess


@triton.jit
def combiner_of(unit, owner, WORLD: tl.constexpr, DELIVERY: tl.constexpr):
    """The rank that alone combines a unit, where one does."""
    if DELIVERY == TWO_SHOT:
        combiner = unit % WORLD
    else:
        combiner = owner
    return combiner


@triton.jit
def combines_here(unit, owner, rank, WORLD: tl.constexpr, OWNED: tl.constexpr, DELIVERY: tl.constexpr):
    """True on every rank that combines the unit."""
    here = True
    if DELIVERY == TWO_SHOT or OWNED > 0:
        here = combiner_of(unit, owner, WORLD, DELIVERY) == rank
    return here


@triton.jit
def deliver_tile(
    result, lse, rows, valid, unit, owner, epoch, mine, mine_lse, inbox, inbox_lse, value_stride, lse_stride, rank,
    heap_bases, D: tl.constexpr, WORLD: tl.constexpr, OWNED: tl.constexpr, DELIVERY: tl.constexpr,
):  # fmt: skip
    """Store a reduced tile, result [TILE, D] and lse [TILE], at the destination DELIVERY; ``rows`` of the result that
    it belongs to.
    """
    columns = tl.arange(0, D)
    mask = valid[:, None]
    within = rows[:, None] * D + columns[None, :]
    if DELIVERY == KEEP:
        mine, mine_lse = own_block(mine, mine_lse, owner, value_stride, lse_stride, OWNED)
        tl.store(mine + within, result.to(mine.dtype.element_ty), mask=mask)
        tl.store(mine_lse + rows, lse, mask=valid)
    else:
        source = tl.cast((epoch & 1) * WORLD + rank, tl.int64)
        place = inbox + source * value_stride + within
        place_lse = inbox_lse + source * lse_stride + rows
        if DELIVERY == ONE_SHOT_LL:
            sent = ll_pack(result, ll_flag(epoch))
            sent_lse = ll_pack(lse, ll_flag(epoch))
        elif DELIVERY == ONE_SHOT_SENTINEL:
            sent = sentinel_bits(result.to(mine.dtype.element_ty))
            sent_lse = sentinel_bits(lse)
        else:
            sent = result.to(inbox.dtype.element_ty)
            sent_lse = lse
        if DELIVERY == TWO_SHOT or OWNED > 0:
            combiner = combiner_of(unit, owner, WORLD, DELIVERY)
            heap.store(place, sent, rank, combiner, heap_bases, mask=mask, hint=(1, 16))
            heap.store(place_lse, sent_lse, rank, combiner, heap_bases, mask=valid)
        else:
            for turn in tl.static_range(1, WORLD + 1):
                peer = (rank + turn) % WORLD
                heap.store(place, sent, rank, peer, heap_bases, mask=mask, hint=(1, 16))
                heap.store(place_lse, sent_lse, rank, peer, heap_bases, mask=valid)


@triton.jit
def own_block(mine, mine_lse, owner, value_stride, lse_stride, OWNED: tl.constexpr):
    """Our own records of an owner's heads."""
    if OWNED > 0:
        mine += tl.cast(owner, tl.int64) * value_stride
        mine_lse += tl.cast(owner, tl.int64) * lse_stride
    return mine, mine_lse


@triton.jit
def announce_unit(
    unit, units, owner, arrivals, rank, heap_bases, WORLD: tl.constexpr, OWNED: tl.constexpr, DELIVERY: tl.constexpr
):  # fmt: skip
    """Signal a delivered unit to its combiner."""
    counter = arrivals + rank * units + unit
    if DELIVERY == TWO_SHOT or (DELIVERY == ONE_SHOT and OWNED > 0):
        heap.signal(counter, combiner_of(unit, owner, WORLD, DELIVERY), rank, heap_bases)
    elif DELIVERY == ONE_SHOT:
        heap.signal_each(counter, rank, heap_bases, WORLD, 0)


@triton.jit
def wait_for_unit(unit, units, arrivals, epoch, status, spin_limit, WORLD: tl.constexpr):
    """Wait until every rank has delivered its part of a unit."""
    sources = tl.arange(0, triton.next_power_of_2(WORLD))
    heap.wait_each(arrivals + unit + sources * units, sources < WORLD, epoch + 1, status, spin_limit)


@triton.jit
def through_memory(result, lse, rows, valid, mine, mine_lse, D: tl.constexpr):
    """A reduced tile by way of our own records, as a kernel would hand it on to the next."""
    within = rows[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(mine + within, result.to(mine.dtype.element_ty), mask=valid[:, None])
    tl.store(mine_lse + rows, lse, mask=valid)
    tl.debug_barrier()
    result = tl.load(mine + within, mask=valid[:, None], other=0.0).to(tl.float32)
    return result, tl.load(mine_lse + rows, mask=valid, other=float("-inf"))


@triton.jit
def reduce_unit(
    unit, units, heads_of_group, splits, part_stride, parts, part_lse, epoch,
    mine, mine_lse, inbox, inbox_lse, value_stride, lse_stride, arrivals, rank, heap_bases,
    D: tl.constexpr, UNITS: tl.constexpr, BLOCKS: tl.constexpr, HPP: tl.constexpr, TRANSFER_HEADS: tl.constexpr,
    TILE: tl.constexpr, CHUNK: tl.constexpr, WORLD: tl.constexpr, OWNED: tl.constexpr, DELIVERY: tl.constexpr,
    MEMORY: tl.constexpr,
):  # fmt: skip
    """Merge a unit's splits and deliver it. MEMORY, for ``tune taxes`` alone: by way of our own records."""
    first, end = rows_of_unit(unit, heads_of_group, UNITS, BLOCKS, HPP, TRANSFER_HEADS)
    owner, excess = home_of_unit(first, WORLD, OWNED)
    for tile in range(TRANSFER_HEADS // TILE):
        rows = first + tile * TILE + tl.arange(0, TILE)
        valid = rows < end
        result, lse = merge_parts(parts, part_lse, part_stride * D, part_stride, rows, valid, splits, D, CHUNK)
        rows -= excess
        if MEMORY:
            kept, kept_lse = own_block(mine, mine_lse, owner, value_stride, lse_stride, OWNED)
            result, lse = through_memory(result, lse, rows, valid, kept, kept_lse, D)
        deliver_tile(
            result, lse, rows, valid, unit, owner, epoch, mine, mine_lse, inbox, inbox_lse, value_stride, lse_stride,
            rank, heap_bases, D, WORLD, OWNED, DELIVERY,
        )  # fmt: skip
    announce_unit(unit, units, owner, arrivals, rank, heap_bases, WORLD, OWNED, DELIVERY)


@triton.jit
def push_unit(
    unit, units, heads_of_group, epoch, mine, mine_lse, inbox, inbox_lse, value_stride, lse_stride, arrivals, rank,
    heap_bases,
    D: tl.constexpr, UNITS: tl.constexpr, BLOCKS: tl.constexpr, HPP: tl.constexpr, TRANSFER_HEADS: tl.constexpr,
    TILE: tl.constexpr, WORLD: tl.constexpr, OWNED: tl.constexpr, DELIVERY: tl.constexpr,
):  # fmt: skip
    """Deliver a unit of our own records."""
    first, end = rows_of_unit(unit, heads_of_group, UNITS, BLOCKS, HPP, TRANSFER_HEADS)
    owner, excess = home_of_unit(first, WORLD, OWNED)
    kept, kept_lse = own_block(mine, mine_lse, owner, value_stride, lse_stride, OWNED)
    columns = tl.arange(0, D)
    for tile in range(TRANSFER_HEADS // TILE):
        rows = first + tile * TILE + tl.arange(0, TILE)
        valid = rows < end
        mask = valid[:, None]
        rows -= excess
        result = tl.load(kept + rows[:, None] * D + columns[None, :], mask=mask, other=0.0)
        lse = tl.load(kept_lse + rows, mask=valid, other=float("-inf"))
        deliver_tile(
            result, lse, rows, valid, unit, owner, epoch, mine, mine_lse, inbox, inbox_lse, value_stride, lse_stride,
            rank, heap_bases, D, WORLD, OWNED, DELIVERY,
        )  # fmt: skip
    announce_unit(unit, units, owner, arrivals, rank, heap_bases, WORLD, OWNED, DELIVERY)


@triton.jit
def ll_merge(
    inbox, inbox_lse, value_stride, lse_stride, rows, valid, flag, status, spin_limit,
    D: tl.constexpr, WORLD: tl.constexpr,
):  # fmt: skip
    """``merge_parts`` of all ranks' LL words, polled until they have come in."""
    place, place_lse, there = places_of_each(inbox, inbox_lse, value_stride, lse_stride, rows, valid, D, WORLD)
    lse = ll_unpack(ll_wait(place_lse, flag, there, status, spin_limit))
    tile = ll_unpack(ll_wait(place, flag, there[:, :, None], status, spin_limit))
    return merged(tile, tl.where(there, lse, float("-inf")), rows.shape[0], D)


@triton.jit
def sentinel_merge(
    inbox, inbox_lse, value_stride, lse_stride, rows, valid, status, spin_limit,
    TYPE: tl.constexpr, D: tl.constexpr, WORLD: tl.constexpr,
):  # fmt: skip
    """``merge_parts`` of sentinel words of fp32 or TYPE, by their only reader, which empties them."""
    place, place_lse, there = places_of_each(inbox, inbox_lse, value_stride, lse_stride, rows, valid, D, WORLD)
    sentinel_wait(place_lse, there, status, spin_limit)
    tl.debug_barrier()  # several threads hold each of these few words: from here on all see what one has seen
    lse = sentinel_read(place_lse, there).to(tl.float32, bitcast=True)
    data = sentinel_take(place, there[:, :, None], status, spin_limit)
    tl.debug_barrier()  # every thread has read the few words
    sentinel_empty(place_lse, there)
    if data.dtype.primitive_bitwidth == 32:
        values = data.to(tl.float32, bitcast=True)
    else:
        values = data.to(TYPE, bitcast=True).to(tl.float32)
    return merged(values, tl.where(there, lse, float("-inf")), rows.shape[0], D)


@triton.jit
def places_of_each(
    inbox, inbox_lse, value_stride, lse_stride, rows, valid, D: tl.constexpr, WORLD: tl.constexpr
):  # fmt: skip
    """Pointers to all ranks' records of some rows: values [ranks, rows, D] and LSEs [ranks, rows]; and which exist."""
    source = tl.arange(0, triton.next_power_of_2(WORLD))
    columns = tl.arange(0, D)
    place = inbox + source[:, None, None] * value_stride + rows[None, :, None] * D + columns[None, None, :]
    place_lse = inbox_lse + source[:, None] * lse_stride + rows[None, :]
    return place, place_lse, (source < WORLD)[:, None] & valid[None, :]


@triton.jit
def merged(values, lse, ROWS: tl.constexpr, D: tl.constexpr):
    """The part that ``values`` [parts, rows, D] and ``lse`` [parts, rows] make, as ``finalize`` returns it."""
    acc, total, running_max = update(
        tl.zeros((ROWS, D), dtype=tl.float32), tl.zeros((ROWS,), dtype=tl.float32),
        tl.full((ROWS,), float("-inf"), dtype=tl.float32), values, lse,
    )  # fmt: skip
    return finalize(acc, total, running_max)


@triton.jit
def combine_unit(
    unit, units, total_rows, heads_of_group, epoch, inbox, inbox_lse, value_stride, lse_stride, outbox, out,
    arrivals, returns, rank, heap_bases, status, spin_limit,
    D: tl.constexpr, UNITS: tl.constexpr, BLOCKS: tl.constexpr, HPP: tl.constexpr, TRANSFER_HEADS: tl.constexpr,
    TILE: tl.constexpr, CHUNK: tl.constexpr, WORLD: tl.constexpr, OWNED: tl.constexpr, DELIVERY: tl.constexpr,
    SLOTS: tl.constexpr, WAIT: tl.constexpr,
):  # fmt: skip
    """Merge all ranks' parts of a unit, in the order of the ranks so that all get the same bits, into ``out``.

    WAIT: until they have come in. OWNED: only the owner of the unit's heads merges. TWO_SHOT: only one rank merges, and
    returns the output to every rank.
    """
    first, end = rows_of_unit(unit, heads_of_group, UNITS, BLOCKS, HPP, TRANSFER_HEADS)
    owner, excess = home_of_unit(first, WORLD, OWNED)
    columns = tl.arange(0, D)
    slot = epoch & (SLOTS - 1)
    inbox += tl.cast(slot * WORLD, tl.int64) * value_stride
    inbox_lse += tl.cast(slot * WORLD, tl.int64) * lse_stride
    outbox += tl.cast(slot * total_rows, tl.int64) * D
    if combines_here(unit, owner, rank, WORLD, OWNED, DELIVERY):
        if WAIT and DELIVERY != ONE_SHOT_LL and DELIVERY != ONE_SHOT_SENTINEL:
            wait_for_unit(unit, units, arrivals, epoch, status, spin_limit, WORLD)
        for tile in range(TRANSFER_HEADS // TILE):
            rows = first + tile * TILE + tl.arange(0, TILE)
            valid = rows < end
            rows -= excess
            if DELIVERY == ONE_SHOT_LL:
                result, _ = ll_merge(
                    inbox, inbox_lse, value_stride, lse_stride, rows, valid, ll_flag(epoch), status, spin_limit,
                    D, WORLD,
                )  # fmt: skip
            elif DELIVERY == ONE_SHOT_SENTINEL:
                result, _ = sentinel_merge(
                    inbox, inbox_lse, value_stride, lse_stride, rows, valid, status, spin_limit,
                    out.dtype.element_ty, D, WORLD,
                )  # fmt: skip
            else:
                result, _ = merge_parts(inbox, inbox_lse, value_stride, lse_stride, rows, valid, WORLD, D, CHUNK)
            within = rows[:, None] * D + columns[None, :]
            mask = valid[:, None]
            result = result.to(out.dtype.element_ty)
            if DELIVERY == TWO_SHOT:
                for turn in tl.static_range(1, WORLD + 1):
                    peer = (rank + turn) % WORLD
                    heap.store(outbox + within, result, rank, peer, heap_bases, mask=mask, hint=(1, 16))
            else:
                tl.store(out + within, result, mask=mask)
        if DELIVERY == TWO_SHOT:
            heap.signal_each(returns + unit, rank, heap_bases, WORLD, 0)
    if DELIVERY == TWO_SHOT:
        heap.wait(returns + unit, epoch + 1, status, spin_limit)
        for tile in range(TRANSFER_HEADS // TILE):
            rows = first + tile * TILE + tl.arange(0, TILE)
            within = rows[:, None] * D + columns[None, :]
            mask = (rows < end)[:, None]
            tl.store(out + within, tl.load(outbox + within, mask=mask, other=0.0), mask=mask)
