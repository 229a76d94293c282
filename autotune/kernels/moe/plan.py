"""The routing of all ranks, exchanged, and the plan that follows from it on every rank: no host, no shapes from data.

Each rank sends the ids and gates of its tokens to every rank, by LL words or by stores and a signal: a few bytes per
token. A rank's plan (``routing.Plan``) then takes no more than that: one program for each local expert counts the pairs
of the experts before its own, which gives its first row, and then lists its own in their order. The order is fixed:
rows are by expert, then by source, then by token.

``epoch`` is that of ``wide_epoch``. The inbox has two slots, used in turn, each [WORLD, 2, pairs]: of every source the
ids, then the gates; int32, or int64 as LL words. A plan waits for the routing of every rank, so that no launch that
plans ends without something from every peer, as two slots need it (docs/memory-model.md): inboxes of tokens in the same
launch may have two slots too, whoever sends a token or none. Programs that send wait for nothing and come before those
that plan.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.primitives.counters import finish_unordered, wide_epoch
from autotune.kernels.primitives.ll import ll_flag, ll_wait, ll_words

ROWS_LOST = tl.constexpr(1)
"""Bit of the faults in a status: more rows than there is room for, as some tokens name an expert more than once."""


@triton.jit
def send_routing(
    ids, gates, inbox, arrivals, pairs, epoch, part, parts, rank, heap_bases,
    WORLD: tl.constexpr, LL: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Send this part of ``parts`` of our routing, ids and gates [pairs], to every rank, ourselves included.

    ``arrivals`` is int32 [2, WORLD]: each part signals once. By LL words none does.
    """
    slot = (epoch & 1).to(tl.int32)
    place = inbox + (slot * WORLD + rank) * 2 * pairs
    for begin in range(part * STEP, pairs, parts * STEP):
        number = begin + tl.arange(0, STEP)
        inside = number < pairs
        chosen = tl.load(ids + number, mask=inside)
        gate = tl.load(gates + number, mask=inside).to(tl.int32, bitcast=True)
        if LL:
            flag = ll_flag(epoch)
            chosen = ll_words(chosen.to(tl.int64) & 0xFFFFFFFF, flag)
            gate = ll_words(gate.to(tl.int64) & 0xFFFFFFFF, flag)
        for onwards in tl.static_range(WORLD):
            peer = (rank + onwards) % WORLD
            heap.store(place + number, chosen, rank, peer, heap_bases, mask=inside)
            heap.store(place + pairs + number, gate, rank, peer, heap_bases, mask=inside)
    if not LL:
        heap.signal_each(arrivals + slot * WORLD + rank, rank, heap_bases, WORLD, 0)


@triton.jit
def plan_expert(
    expert, inbox, arrivals, parts, offsets, listed, listed_gates, own_rows, pairs, local, capacity, epoch, rank,
    status, spin_limit, WORLD: tl.constexpr, LL: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Wait for every rank's routing, then list the rows of local expert number ``expert`` of ``local``.

    Writes offsets[expert + 1], offsets[0], and of ``listed`` and ``listed_gates`` [capacity] the expert's own rows;
    own_rows [local, 2]: the first of these that is a token of this rank, and the one behind the last. The caller
    orders all of it before whoever reads it.
    """
    slot = (epoch & 1).to(tl.int32)
    late = 0
    if not LL:
        ranks = tl.arange(0, triton.next_power_of_2(WORLD))
        target = (((epoch >> 1) + 1) * parts).to(tl.int32)
        late = heap.wait_each(arrivals + slot * WORLD + ranks, ranks < WORLD, target, status, spin_limit)
    first = rank * local
    row = 0
    of_lower = 0
    of_us = 0
    of_higher = 0
    for begin in range(late, WORLD * pairs, STEP):
        number, chosen = _routed(
            inbox, slot, 0, begin, True, pairs, epoch, status, spin_limit, WORLD, LL, STEP
        )  # fmt: skip
        source = number // pairs
        mine = chosen == first + expert
        row += tl.sum(((chosen >= first) & (chosen < first + expert)).to(tl.int32), axis=0)
        of_lower += tl.sum((mine & (source < rank)).to(tl.int32), axis=0)
        of_us += tl.sum((mine & (source == rank)).to(tl.int32), axis=0)
        of_higher += tl.sum((mine & (source > rank)).to(tl.int32), axis=0)
    end = row + of_lower + of_us + of_higher
    if expert == 0:
        tl.store(offsets, 0)
    tl.store(offsets + expert + 1, tl.minimum(end, capacity))  # more only if a token has an expert twice
    tl.store(own_rows + 2 * expert, tl.minimum(row + of_lower, capacity))
    tl.store(own_rows + 2 * expert + 1, tl.minimum(row + of_lower + of_us, capacity))
    begin = late
    while (row < end) & (begin < WORLD * pairs):
        number, chosen = _routed(
            inbox, slot, 0, begin, True, pairs, epoch, status, spin_limit, WORLD, LL, STEP
        )  # fmt: skip
        mine = chosen == first + expert
        _, gate = _routed(
            inbox, slot, 1, begin, mine, pairs, epoch, status, spin_limit, WORLD, LL, STEP
        )  # fmt: skip
        count = mine.to(tl.int32)
        place = row + tl.cumsum(count, axis=0) - count
        fits = mine & (place < capacity)
        tl.store(listed + place, number, mask=fits)
        tl.store(listed_gates + place, gate.to(tl.float32, bitcast=True), mask=fits)
        row += tl.sum(count, axis=0)
        begin += STEP
    if row > capacity:
        tl.atomic_or(status + 1, ROWS_LOST)
        heap.time_out(status)  # some would wait for the rows that are left out, or take old ones for them


@triton.jit
def _routed(
    inbox, slot, which, begin, wanted, pairs, epoch, status, spin_limit,
    WORLD: tl.constexpr, LL: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Numbers from ``begin`` on of pairs over all ranks, and their ids (``which`` 0, -1 beyond the end) or the bits of
    their gates (1): int32 [STEP] each.
    """
    number = begin + tl.arange(0, STEP)
    inside = (number < WORLD * pairs) & wanted
    source = number // pairs
    place = inbox + ((slot * WORLD + source) * 2 + which) * pairs + number % pairs
    if LL:
        words = ll_wait(place, ll_flag(epoch), inside, status, spin_limit)
        value = tl.where(inside, words.to(tl.int32), -1)
    else:
        value = tl.load(place, mask=inside, other=-1)
    return number, value


@triton.jit(do_not_specialize=["pairs", "rank", "spin_limit"])
def plan_kernel(
    ids, gates, offsets, listed, listed_gates, own_rows, inbox, arrivals, pairs, local, capacity, parts, rank,
    heap_bases, epoch_counter, status, spin_limit, WORLD: tl.constexpr, LL: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """The exchange and the plan alone: ``parts`` programs send, then one for each of ``local`` experts plans."""
    pid = tl.program_id(0)
    epoch = wide_epoch(epoch_counter)
    if pid < parts:
        send_routing(ids, gates, inbox, arrivals, pairs, epoch, pid, parts, rank, heap_bases, WORLD, LL, STEP)
    else:
        plan_expert(
            pid - parts, inbox, arrivals, parts, offsets, listed, listed_gates, own_rows, pairs, local, capacity, epoch,
            rank, status, spin_limit, WORLD, LL, STEP,
        )  # fmt: skip
    finish_unordered(epoch_counter, tl.num_programs(0), pid == 0)
