"""After the attention: the reduction of a sequence's parts, the exchange between the ranks, the combination.

A unit's way: the programs that share its sequence (``shares.py``) attend to it, in any order, and each leaves a part;
then it is reduced here, delivered to who combines it (every rank, or one: with ``exchange=two_shot`` rank unit % WORLD,
with ``result=heads`` the owner of its heads), combined there, and with ``two_shot`` returned to every rank. Where heads
have owners (OWNED, heads per rank, is not 0), records have a block for each of them, and a unit's heads have one owner:
a constraint of the space.

Launch after launch without a barrier. Inbox and outbox have two slots, used in turn (epoch & 1). A rank that delivers
in epoch e has finished its launch e - 1, hence held its whole result of it, which is not empty, hence whoever combined
that had every rank's partial results of e - 1, hence every rank had begun e - 1 and finished e - 2, whose programs were
the slot's last readers. Counters only grow, by one a launch, and may wrap around; so may epochs. ``arrived`` alone
counts within a launch, for how many programs share a sequence changes with the lengths: who reduces, one program for
each counter, sets it back to zero when the last part has arrived, and the next launch begins when this one has ended.
Every program reads the epoch before all else; the last of those that combine, or that pass where others do, advances
it. Every sequence, an empty one too, has a block and so a part: as many are counted whatever the lengths, and when all
are, only programs without a share may still have to read the epoch, and do nothing with it. What a slot still holds as
LL words (``primitives/ll.py``) is of e - 2. Sentinel words (``primitives/sentinel.py``) are read by one program each,
the one that combines their unit; it empties them, in e - 2 at the latest: so the slot is empty in e.

No wait can starve its producer. Programs wait when they have delivered all that they reduce, and for nothing else.
What attends for programs behind it never waits, and has lower ids, so is dispatched first; these programs wait for
their own unit, so the lowest one that is unfinished on some rank has no waiting program before it. Where the last of a
sequence's programs reduces and combines, programs follow one another head block by head block (a constraint): take the
lowest unit in that order, of each head block by sequence, that is not delivered on some rank. A program of it that is
not dispatched finds places held by lower ones, of lower head blocks or of the same one and earlier tokens. What they
have reduced are lower units, which every rank has delivered: they end. The interpreter, one program after another, goes
the same way.
"""

from __future__ import annotations

from collections import namedtuple

import triton
import triton.language as tl
from triton.language.extra.cuda import num_threads

from autotune.heap import device as heap
from autotune.kernels.primitives.ll import halves, interleaved, ll_flag, ll_pack, ll_unpack, ll_wait
from autotune.kernels.primitives.sentinel import (
    pairs,
    sentinel_bits,
    sentinel_empty,
    sentinel_read,
    sentinel_take,
    sentinel_wait,
)
from autotune.kernels.primitives.softmax import finalize, merge_parts

KEEP = tl.constexpr(0)
"""Destination of a reduced unit: our own records; every rank whose result it belongs to, also as LL or as sentinel
words; rank unit % WORLD."""
ONE_SHOT = tl.constexpr(1)
ONE_SHOT_LL = tl.constexpr(2)
TWO_SHOT = tl.constexpr(3)
ONE_SHOT_SENTINEL = tl.constexpr(4)

Units = namedtuple(
    "Units", "D UNITS BLOCKS HPP TRANSFER_HEADS TILE WORLD OWNED PART_CHUNK CHUNK", defaults=(None, None)
)  # fmt: skip
"""Units of rows, and who has them. A merge loads PART_CHUNK parts of a sequence at once, or CHUNK ranks' results."""

Records = namedtuple(
    "Records", "units total_rows heads_of_group mine mine_lse inbox inbox_lse value_stride lse_stride "
    "arrivals outbox returns", defaults=(None, None)
)  # fmt: skip
"""Partial results of ``units`` units, values and LSEs: this rank's own, and those of all ranks in the inbox; and what
says that they are there.
"""

Parts = namedtuple("Parts", "results lse q_heads first programs")
"""The partial results of a sequence by so many programs from the ``first`` on, each ``q_heads`` rows after the one
before.
"""


@triton.jit
def part_of(sequence, program, programs, APART: tl.constexpr):
    """The place of a program's part of a sequence among all parts. From one part to the next, in order, sequence or
    program grow and neither falls: so no two have the same place, and there are less than batch + programs of them.
    APART every sequence has a place for each program.
    """
    place = sequence + program
    if APART:
        place += sequence * (programs - 1)
    return place


@triton.jit
def rows_of_unit(unit, heads_of_group, FORM: tl.constexpr):
    """First row of a unit, and the row after its last; empty if the group's heads are used up."""
    block = unit // FORM.UNITS
    head = block % FORM.BLOCKS * FORM.HPP + unit % FORM.UNITS * FORM.TRANSFER_HEADS
    first = block // FORM.BLOCKS * heads_of_group
    end = tl.minimum(tl.minimum(heads_of_group, (block % FORM.BLOCKS + 1) * FORM.HPP), head + FORM.TRANSFER_HEADS)
    return first + head, first + end


@triton.jit
def home_of_unit(first, FORM: tl.constexpr):
    """The owner of a unit's heads, and the offset of its row numbers over those in the owner's result. ``first``: the
    unit's first row. 0 and 0 where every rank gets all heads.
    """
    owner = 0
    excess = 0
    if FORM.OWNED > 0:
        owner = first // FORM.OWNED % FORM.WORLD
        excess = first - first // (FORM.WORLD * FORM.OWNED) * FORM.OWNED - first % FORM.OWNED
    return owner, excess


@triton.jit
def combiner_of(unit, owner, FORM: tl.constexpr, DELIVERY: tl.constexpr):
    """The rank that alone combines a unit, where one does."""
    if DELIVERY == TWO_SHOT:
        combiner = unit % FORM.WORLD
    else:
        combiner = owner
    return combiner


@triton.jit
def combines_here(unit, owner, rank, FORM: tl.constexpr, DELIVERY: tl.constexpr):
    """True on every rank that combines the unit."""
    here = True
    if DELIVERY == TWO_SHOT or FORM.OWNED > 0:
        here = combiner_of(unit, owner, FORM, DELIVERY) == rank
    return here


@triton.jit
def deliver_tile(
    result, lse, rows, valid, unit, owner, epoch, records, peers, FORM: tl.constexpr, DELIVERY: tl.constexpr
):  # fmt: skip
    """Store a reduced tile, result [TILE, D] and lse [TILE], at the destination DELIVERY; ``rows`` of the result that
    it belongs to.
    """
    mask = valid[:, None]
    within = rows[:, None] * FORM.D + tl.arange(0, FORM.D)[None, :]
    if DELIVERY == KEEP:
        mine, mine_lse = own_block(records, owner, FORM)
        tl.store(mine + within, result.to(mine.dtype.element_ty), mask=mask)
        tl.store(mine_lse + rows, lse, mask=valid)
    else:
        slot = (epoch & 1).to(tl.int32)
        source = tl.cast(slot * FORM.WORLD + peers.rank, tl.int64)
        place = records.inbox + source * records.value_stride + within
        place_lse = records.inbox_lse + source * records.lse_stride + rows
        if DELIVERY == ONE_SHOT_LL:
            sent = ll_pack(result, ll_flag(epoch))
            sent_lse = ll_pack(lse, ll_flag(epoch))
        elif DELIVERY == ONE_SHOT_SENTINEL:
            sent = sentinel_bits(result.to(records.mine.dtype.element_ty))
            sent_lse = sentinel_bits(lse)
        else:
            sent = result.to(records.inbox.dtype.element_ty)
            sent_lse = lse
        if DELIVERY == TWO_SHOT or FORM.OWNED > 0:
            combiner = combiner_of(unit, owner, FORM, DELIVERY)
            heap.store(place, sent, peers.rank, combiner, peers.bases, mask=mask, hint=(1, 16))
            heap.store(place_lse, sent_lse, peers.rank, combiner, peers.bases, mask=valid)
        else:
            for turn in tl.static_range(1, FORM.WORLD + 1):
                peer = (peers.rank + turn) % FORM.WORLD
                heap.store(place, sent, peers.rank, peer, peers.bases, mask=mask, hint=(1, 16))
                heap.store(place_lse, sent_lse, peers.rank, peer, peers.bases, mask=valid)


@triton.jit
def own_block(records, owner, FORM: tl.constexpr):
    """Our own records of an owner's heads."""
    mine, mine_lse = records.mine, records.mine_lse
    if FORM.OWNED > 0:
        mine += tl.cast(owner, tl.int64) * records.value_stride
        mine_lse += tl.cast(owner, tl.int64) * records.lse_stride
    return mine, mine_lse


@triton.jit
def announce_unit(unit, owner, records, peers, FORM: tl.constexpr, DELIVERY: tl.constexpr):
    """Signal a delivered unit to its combiner."""
    counter = records.arrivals + peers.rank * records.units + unit
    if DELIVERY == TWO_SHOT or (DELIVERY == ONE_SHOT and FORM.OWNED > 0):
        heap.signal(counter, combiner_of(unit, owner, FORM, DELIVERY), peers)
    elif DELIVERY == ONE_SHOT:
        heap.signal_each(counter, peers, FORM.WORLD, 0)


@triton.jit
def wait_for_unit(unit, records, epoch, peers, WORLD: tl.constexpr):
    """Wait until every rank has delivered its part of a unit."""
    sources = tl.arange(0, triton.next_power_of_2(WORLD))
    heap.wait_each(records.arrivals + unit + sources * records.units, sources < WORLD, epoch + 1, peers)


@triton.jit
def through_memory(result, lse, rows, valid, mine, mine_lse):
    """A reduced tile by way of our own records, as a kernel would hand it on to the next."""
    within = rows[:, None] * result.shape[1] + tl.arange(0, result.shape[1])[None, :]
    tl.store(mine + within, result.to(mine.dtype.element_ty), mask=valid[:, None])
    tl.store(mine_lse + rows, lse, mask=valid)
    tl.debug_barrier()
    result = tl.load(mine + within, mask=valid[:, None], other=0.0).to(tl.float32)
    return result, tl.load(mine_lse + rows, mask=valid, other=float("-inf"))


@triton.jit
def deliver_unit(
    unit, parts, epoch, records, peers, FORM: tl.constexpr, DELIVERY: tl.constexpr, MEMORY: tl.constexpr = False,
):  # fmt: skip
    """Merge a unit's parts and deliver it; or deliver what our own records have of it, where ``parts`` is None.
    MEMORY, for ``tune taxes`` alone: by way of our own records.
    """
    first, end = rows_of_unit(unit, records.heads_of_group, FORM)
    owner, excess = home_of_unit(first, FORM)
    kept, kept_lse = own_block(records, owner, FORM)
    for tile in range(FORM.TRANSFER_HEADS // FORM.TILE):
        rows = first + tile * FORM.TILE + tl.arange(0, FORM.TILE)
        valid = rows < end
        if parts is None:
            rows -= excess
            within = rows[:, None] * FORM.D + tl.arange(0, FORM.D)[None, :]
            result = tl.load(kept + within, mask=valid[:, None], other=0.0)
            lse = tl.load(kept_lse + rows, mask=valid, other=float("-inf"))
        else:
            shift = tl.cast(parts.first, tl.int64) * parts.q_heads
            result, lse = merge_parts(
                parts.results + shift * FORM.D, parts.lse + shift, parts.q_heads * FORM.D, parts.q_heads, rows, valid,
                parts.programs, FORM.D, FORM.PART_CHUNK,
            )  # fmt: skip
            rows -= excess
            if MEMORY:
                result, lse = through_memory(result, lse, rows, valid, kept, kept_lse)
        deliver_tile(result, lse, rows, valid, unit, owner, epoch, records, peers, FORM, DELIVERY)
    announce_unit(unit, owner, records, peers, FORM, DELIVERY)


@triton.jit
def ll_merge(inbox, inbox_lse, records, first, count, flag, peers, FORM: tl.constexpr):
    """``merge_parts`` of all ranks' LL words of ``count`` rows, polled until they have come in."""
    place, wanted, place_lse, there = places_of_each(inbox, inbox_lse, records, first, count, FORM)
    lse = ll_unpack(ll_wait(place_lse, flag, there, peers))
    values = ll_unpack(ll_wait(place, flag, wanted, peers))
    return merged(values, tl.where(there, lse, float("-inf")))


@triton.jit
def sentinel_merge(inbox, inbox_lse, records, first, count, peers, TYPE: tl.constexpr, FORM: tl.constexpr):
    """``merge_parts`` of sentinel words of fp32 or TYPE, by their only reader, which empties them."""
    THREADS: tl.constexpr = num_threads() if heap.compiles_for_cuda() else 1
    WORDS: tl.constexpr = triton.next_power_of_2(FORM.WORLD) * FORM.TILE * FORM.D
    PAIRS: tl.constexpr = pairs(inbox.dtype.element_ty, WORDS, THREADS)
    if PAIRS:
        inbox = inbox.to(tl.pointer_type(tl.int32))
    PER: tl.constexpr = 2 if PAIRS else 1
    place, wanted, place_lse, there = places_of_each(inbox, inbox_lse, records, first, count, FORM, PER)
    sentinel_wait(place_lse, there, peers)
    tl.debug_barrier()  # several threads hold each of these few words: from here on all see what one has seen
    lse = sentinel_read(place_lse, there).to(tl.float32, bitcast=True)
    data = sentinel_take(place, wanted, peers, PAIRS)
    tl.debug_barrier()  # every thread has read the few words
    sentinel_empty(place_lse, there)
    lse = tl.where(there, lse, float("-inf"))
    if PAIRS:
        low, high = halves(data, TYPE)
        low, result_lse = merged(low, lse)
        high, _ = merged(high, lse)
        result = interleaved(low, high)
    else:
        if data.dtype.primitive_bitwidth == 32:
            values = data.to(tl.float32, bitcast=True)
        else:
            values = data.to(TYPE, bitcast=True).to(tl.float32)
        result, result_lse = merged(values, lse)
    return result, result_lse


@triton.jit
def places_of_each(inbox, inbox_lse, records, first, count, FORM: tl.constexpr, PER: tl.constexpr = 1):
    """Pointers to all ranks' records of TILE rows from ``first`` on: values [ranks, TILE * D // PER], PER elements
    each, and LSEs [ranks, TILE]; and which of either exist, those of ``count`` rows.

    Rows lie side by side, and are no dimension: Triton (3.6) dealt ranks out to threads before rows, and a merge met at
    barriers. One H200 as two ranks, 32 sequences of 64 heads of 512, rounded: 47.3 us a call, in this way 38.7.
    """
    WORDS: tl.constexpr = FORM.D // PER
    source = tl.arange(0, triton.next_power_of_2(FORM.WORLD))
    within = tl.arange(0, FORM.TILE * WORDS)
    rows = tl.arange(0, FORM.TILE)
    exists = (source < FORM.WORLD)[:, None]
    place = inbox + source[:, None] * (records.value_stride // PER) + (first * WORDS + within)[None, :]
    place_lse = inbox_lse + source[:, None] * records.lse_stride + (first + rows)[None, :]
    return place, exists & (within // WORDS < count)[None, :], place_lse, exists & (rows < count)[None, :]


@triton.jit
def merged(values, lse):
    """The part that ``values`` [parts, rows * D] and ``lse`` [parts, rows] make, as ``finalize`` returns it."""
    values = tl.reshape(values, (lse.shape[0], lse.shape[1], values.shape[1] // lse.shape[1]))
    largest = tl.max(lse, axis=0)
    weights = tl.exp2(lse - tl.where(largest == float("-inf"), 0.0, largest)[None, :])
    return finalize(tl.sum(values * weights[:, :, None], axis=0), tl.sum(weights, axis=0), largest)


@triton.jit
def combine_unit(
    unit, out, epoch, records, peers, FORM: tl.constexpr, DELIVERY: tl.constexpr, SLOTS: tl.constexpr = 2,
    WAIT: tl.constexpr = True,
):  # fmt: skip
    """Merge all ranks' parts of a unit, in the order of the ranks so that all get the same bits, into ``out``.

    WAIT: until they have come in. OWNED: only the owner of the unit's heads merges. TWO_SHOT: only one rank merges, and
    returns the output to every rank.
    """
    first, end = rows_of_unit(unit, records.heads_of_group, FORM)
    owner, excess = home_of_unit(first, FORM)
    columns = tl.arange(0, FORM.D)
    slot = (epoch & (SLOTS - 1)).to(tl.int32)
    inbox = records.inbox + tl.cast(slot * FORM.WORLD, tl.int64) * records.value_stride
    inbox_lse = records.inbox_lse + tl.cast(slot * FORM.WORLD, tl.int64) * records.lse_stride
    if DELIVERY == TWO_SHOT:
        outbox = records.outbox + tl.cast(slot * records.total_rows, tl.int64) * FORM.D
    if combines_here(unit, owner, peers.rank, FORM, DELIVERY):
        if WAIT and DELIVERY != ONE_SHOT_LL and DELIVERY != ONE_SHOT_SENTINEL:
            wait_for_unit(unit, records, epoch, peers, FORM.WORLD)
        for tile in range(FORM.TRANSFER_HEADS // FORM.TILE):
            begin = first + tile * FORM.TILE
            count = end - begin
            valid = tl.arange(0, FORM.TILE) < count
            begin -= excess
            rows = begin + tl.arange(0, FORM.TILE)
            if DELIVERY == ONE_SHOT_LL:
                result, _ = ll_merge(inbox, inbox_lse, records, begin, count, ll_flag(epoch), peers, FORM)
            elif DELIVERY == ONE_SHOT_SENTINEL:
                TYPE: tl.constexpr = out.dtype.element_ty
                result, _ = sentinel_merge(inbox, inbox_lse, records, begin, count, peers, TYPE, FORM)
            else:
                result, _ = merge_parts(
                    inbox, inbox_lse, records.value_stride, records.lse_stride, rows, valid, FORM.WORLD, FORM.D,
                    FORM.CHUNK,
                )  # fmt: skip
            within = rows[:, None] * FORM.D + columns[None, :]
            mask = valid[:, None]
            result = result.to(out.dtype.element_ty)
            if DELIVERY == TWO_SHOT:
                for turn in tl.static_range(1, FORM.WORLD + 1):
                    peer = (peers.rank + turn) % FORM.WORLD
                    heap.store(outbox + within, result, peers.rank, peer, peers.bases, mask=mask, hint=(1, 16))
            else:
                tl.store(out + within, result, mask=mask)
        if DELIVERY == TWO_SHOT:
            heap.signal_each(records.returns + unit, peers, FORM.WORLD, 0)
    if DELIVERY == TWO_SHOT:
        heap.wait(records.returns + unit, epoch + 1, peers)
        for tile in range(FORM.TRANSFER_HEADS // FORM.TILE):
            rows = first + tile * FORM.TILE + tl.arange(0, FORM.TILE)
            within = rows[:, None] * FORM.D + columns[None, :]
            mask = (rows < end)[:, None]
            tl.store(out + within, tl.load(outbox + within, mask=mask, other=0.0), mask=mask)
