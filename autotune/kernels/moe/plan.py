"""The routing of all ranks, exchanged, and the plan that follows from it on every rank: no host, no shapes from data.

Each rank sends the ids and gates of its tokens to every rank, by LL words or by stores and a signal: a few bytes per
token. A rank's plan (``routing.Plan``) then takes no more than that: one program for each local expert counts the pairs
of the experts before its own, which gives its first row, and then lists its own in their order. The order is fixed:
rows are by expert, then by source, then by token.

The inbox has two slots, used in turn, each [WORLD, 2, pairs]: of every source the ids, then the gates; int32, or int64
as LL words. A plan waits for the routing of every rank, so that no launch that plans ends without something from every
peer, as two slots need it (docs/memory-model.md): inboxes of tokens in the same launch may have two slots too, whoever
sends a token or none. Programs that send wait for nothing and come before those that plan.
"""

from __future__ import annotations

from collections import namedtuple

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.primitives.counters import finish_unordered, read_epoch
from autotune.kernels.primitives.known import known
from autotune.kernels.primitives.ll import ll_flag, ll_wait, ll_words

ROWS_LOST = tl.constexpr(1)
"""Bit of the faults in a status: more rows than there is room for, as some tokens name an expert more than once."""

Moves = namedtuple(
    "Moves", "WORLD STEP ROUTING_LL LL PULL TOKENS COLUMNS SPLIT CHOICES",
    defaults=(None, None, None, None, None, None),
)  # fmt: skip
"""How routing and tokens travel."""

Routing = namedtuple("Routing", "inbox arrivals parts pairs")
"""The inbox of routing, of ``pairs`` from each rank, sent by ``parts`` programs. ``arrivals``, int32 [2, WORLD], counts
these; none do by LL words.
"""

Plan = namedtuple("Plan", "offsets pairs gates own_rows local capacity")
"""The rows of this rank's ``local`` experts, see ``routing.Plan``. ``own_rows``, int32 [local, 2]: the first of an
expert's rows that is a token of this rank, and the one behind the last.
"""


@triton.jit
def send_routing(ids, gates, routing, epoch, part, peers, FORM: tl.constexpr):
    """Send a part of our routing, ids and gates, to every rank, ourselves included. It signals once."""
    pairs = routing.pairs
    slot = (epoch & 1).to(tl.int32)
    place = routing.inbox + (slot * FORM.WORLD + peers.rank) * 2 * pairs
    for begin in range(part * FORM.STEP, pairs, routing.parts * FORM.STEP):
        number = begin + tl.arange(0, FORM.STEP)
        inside = number < pairs
        chosen = tl.load(ids + number, mask=inside)
        gate = tl.load(gates + number, mask=inside).to(tl.int32, bitcast=True)
        if FORM.ROUTING_LL:
            flag = ll_flag(epoch)
            chosen = ll_words(chosen.to(tl.int64) & 0xFFFFFFFF, flag)
            gate = ll_words(gate.to(tl.int64) & 0xFFFFFFFF, flag)
        for onwards in tl.static_range(FORM.WORLD):
            peer = (peers.rank + onwards) % FORM.WORLD
            heap.store(place + number, chosen, peers.rank, peer, peers.bases, mask=inside)
            heap.store(place + pairs + number, gate, peers.rank, peer, peers.bases, mask=inside)
    if not FORM.ROUTING_LL:
        heap.signal_each(routing.arrivals + slot * FORM.WORLD + peers.rank, peers, FORM.WORLD, 0)


@triton.jit
def plan_expert(expert, routing, plan, epoch, peers, FORM: tl.constexpr):
    """Wait for every rank's routing, then list the rows of local expert number ``expert``.

    Writes offsets[expert + 1], offsets[0], and the expert's own rows. The caller orders all of it before whoever reads
    it.
    """
    local, capacity = plan.local, plan.capacity
    slot = (epoch & 1).to(tl.int32)
    all_pairs = FORM.WORLD * routing.pairs
    late = 0
    if not FORM.ROUTING_LL:
        ranks = tl.arange(0, triton.next_power_of_2(FORM.WORLD))
        target = ((epoch >> 1) + 1) * routing.parts
        late = heap.wait_each(routing.arrivals + slot * FORM.WORLD + ranks, ranks < FORM.WORLD, target, peers)
    first = peers.rank * local
    row = 0
    of_lower = 0
    of_us = 0
    of_higher = 0
    for begin in range(late, all_pairs, FORM.STEP):
        number, chosen = _routed(routing, slot, 0, begin, True, epoch, peers, FORM)
        source = number // routing.pairs
        mine = chosen == first + expert
        row += tl.sum(((chosen >= first) & (chosen < first + expert)).to(tl.int32), axis=0)
        of_lower += tl.sum((mine & (source < peers.rank)).to(tl.int32), axis=0)
        of_us += tl.sum((mine & (source == peers.rank)).to(tl.int32), axis=0)
        of_higher += tl.sum((mine & (source > peers.rank)).to(tl.int32), axis=0)
    end = row + of_lower + of_us + of_higher
    if expert == 0:
        tl.store(plan.offsets, 0)
    tl.store(plan.offsets + expert + 1, tl.minimum(end, capacity))  # more only if a token has an expert twice
    tl.store(plan.own_rows + 2 * expert, tl.minimum(row + of_lower, capacity))
    tl.store(plan.own_rows + 2 * expert + 1, tl.minimum(row + of_lower + of_us, capacity))
    begin = late
    while (row < end) & (begin < all_pairs):
        number, chosen = _routed(routing, slot, 0, begin, True, epoch, peers, FORM)
        mine = chosen == first + expert
        _, gate = _routed(routing, slot, 1, begin, mine, epoch, peers, FORM)
        count = mine.to(tl.int32)
        place = row + tl.cumsum(count, axis=0) - count
        fits = mine & (place < capacity)
        tl.store(plan.pairs + place, number, mask=fits)
        tl.store(plan.gates + place, gate.to(tl.float32, bitcast=True), mask=fits)
        row += tl.sum(count, axis=0)
        begin += FORM.STEP
    if row > capacity:
        tl.atomic_or(peers.status + 1, ROWS_LOST)
        heap.time_out(peers.status)  # some would wait for the rows that are left out, or take old ones for them


@triton.jit
def _routed(routing, slot, which, begin, wanted, epoch, peers, FORM: tl.constexpr):
    """Numbers from ``begin`` on of pairs over all ranks, and their ids (``which`` 0, -1 beyond the end) or the bits of
    their gates (1): int32 [STEP] each.
    """
    pairs = routing.pairs
    number = begin + tl.arange(0, FORM.STEP)
    inside = (number < FORM.WORLD * pairs) & wanted
    source = number // pairs
    place = routing.inbox + ((slot * FORM.WORLD + source) * 2 + which) * pairs + number % pairs
    if FORM.ROUTING_LL:
        words = ll_wait(place, ll_flag(epoch), inside, peers)
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
    peers = heap.Peers(rank, heap_bases, status, spin_limit)
    routing = Routing(inbox, arrivals, parts, pairs)
    FORM: tl.constexpr = known(Moves, WORLD, STEP, LL)
    pid = tl.program_id(0)
    epoch = read_epoch(epoch_counter)
    if pid < parts:
        send_routing(ids, gates, routing, epoch, pid, peers, FORM)
    else:
        plan = Plan(offsets, listed, listed_gates, own_rows, local, capacity)
        plan_expert(pid - parts, routing, plan, epoch, peers, FORM)
    finish_unordered(epoch_counter, tl.num_programs(0), pid == 0)
