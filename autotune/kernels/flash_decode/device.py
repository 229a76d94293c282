"""Device code of flash decode: split-KV attention, the reduction of its splits, the exchange, the combination.

Rows are those of the output, row = sequence * q_heads + query head. A *group* is what one program attends to: up to
HPP query heads of one KV head. A *unit* is FLAG_HEADS heads of a group: what one signal covers, and what one program
reduces, delivers and combines, TILE heads at a time. Units have the same numbers on every rank.

A unit's way: its splits are attended to, in any order; then it is reduced here, delivered to who combines it (every
rank, or its owner, rank unit % WORLD), combined there, and in the latter case returned to every rank.

Launch after launch without a barrier. Inbox and outbox have two slots, used in turn (epoch & 1). A rank that delivers in
epoch e has finished its launch e - 1, hence held every output row of it, hence whoever combined them had every rank's
partial results of e - 1, hence every rank had begun e - 1 and finished e - 2, whose programs were the slot's last
readers. Counters only grow, by one a launch (``arrived`` by the number of splits), and may wrap around; so may epochs.
The epoch is advanced by the last of the programs that combine, which all read it before; no other program reads it
later, for a unit is combined only after all its splits have arrived. Words (``primitives/words.py``) carry epoch + 1, and
what a slot still holds is of e - 2.

No wait can starve its producer. Programs wait only for units of their own number or for splits of it; attending programs
have lower program ids than what waits for them (or, where the last split's program goes on, wait only after all splits
of the unit have begun), and are dispatched first. So look at the lowest unit that is unfinished on some rank: all lower
ones hold no place any more, no higher one can have been dispatched before it, thus its programs are all running, and
they deliver before they wait. The interpreter, one program after another, goes the same way.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.primitives.counters import leave
from autotune.kernels.primitives.everyone import signal_everyone, wait_for_everyone
from autotune.kernels.primitives.softmax import absorb, close, merge_parts
from autotune.kernels.primitives.words import await_words, sealed

ELSEWHERE = tl.constexpr(0)
"""Who reduces splits: another kernel; or the program whose split came last; or programs behind the attending ones."""
LAST = tl.constexpr(1)
TRAILING = tl.constexpr(2)

KEEP = tl.constexpr(0)
"""Where a reduced unit goes: to our own records; to every rank; as words to every rank; to its owner."""
EVERYONE = tl.constexpr(1)
WORDS = tl.constexpr(2)
OWNER = tl.constexpr(3)


@triton.jit
def unit_rows(unit, heads_of_group, UNITS: tl.constexpr, BLOCKS: tl.constexpr, HPP: tl.constexpr, FLAG: tl.constexpr):
    """First row of a unit, and the row after its last: none where the group's heads have been used up."""
    block = unit // UNITS
    head = block % BLOCKS * HPP + unit % UNITS * FLAG
    first = block // BLOCKS * heads_of_group
    end = tl.minimum(tl.minimum(heads_of_group, (block % BLOCKS + 1) * HPP), head + FLAG)
    return first + head, first + end


@triton.jit
def cache_rows(table, start, end, PAGE: tl.constexpr, BLOCK_N: tl.constexpr):
    """What ``token_rows`` needs of the block table for BLOCK_N tokens from ``start``: one page, or one per token."""
    if PAGE % BLOCK_N == 0:
        pages = tl.load(table + tl.minimum(start, end - 1) // PAGE)
    else:
        pages = tl.load(table + tl.minimum(start + tl.arange(0, BLOCK_N), end - 1) // PAGE)
    return pages


@triton.jit
def token_rows(pages, start, end, PAGE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Rows [BLOCK_N] int64 of the cache for the tokens from ``start``; those beyond the end repeat the last one."""
    tokens = tl.minimum(start + tl.arange(0, BLOCK_N), end - 1)
    return pages.to(tl.int64) * PAGE + tokens % PAGE


@triton.jit
def attend(
    q, keys, values, table, first_row, end_row, kv_head, kv_heads, begin, end, scale,
    D: tl.constexpr, HEADS: tl.constexpr, BLOCK_N: tl.constexpr, PAGE: tl.constexpr, CAP: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """Attention of HEADS rows (those from ``end_row`` are padding) over tokens [begin, end) of one sequence.

    Returns values [HEADS, D] and lse [HEADS] as in ``primitives/softmax.py``. ``scale`` takes products to logits in units
    of log2. AHEAD: the block table is read a step before its pages, so that it is off the way to them.
    """
    heads = tl.arange(0, HEADS)
    columns = tl.arange(0, D)
    query = tl.load(
        q + (first_row + heads)[:, None] * D + columns[None, :], mask=(first_row + heads < end_row)[:, None], other=0.0
    )
    acc = tl.zeros((HEADS, D), dtype=tl.float32)
    total = tl.zeros((HEADS,), dtype=tl.float32)
    top = tl.full((HEADS,), float("-inf"), dtype=tl.float32)
    width = kv_heads * D
    keys += kv_head * D
    values += kv_head * D
    if begin < end:
        pages = cache_rows(table, begin, end, PAGE, BLOCK_N)
        for start in range(begin, end, BLOCK_N):
            if not AHEAD:
                pages = cache_rows(table, start, end, PAGE, BLOCK_N)
            place = token_rows(pages, start, end, PAGE, BLOCK_N)[:, None] * width + columns[None, :]
            if AHEAD:
                pages = cache_rows(table, start + BLOCK_N, end, PAGE, BLOCK_N)
            key = tl.load(keys + place)
            value = tl.load(values + place)
            logits = tl.dot(query, tl.trans(key)) * scale
            if CAP > 0:
                bound: tl.constexpr = CAP * 1.4426950408889634
                logits = bound - 2 * bound / (1.0 + tl.exp2(logits * (2.0 / CAP)))
            logits = tl.where((start + tl.arange(0, BLOCK_N) < end)[None, :], logits, float("-inf"))
            highest = tl.maximum(top, tl.max(logits, axis=1))
            weights = tl.exp2(logits - highest[:, None])
            fade = tl.exp2(top - highest)
            total = total * fade + tl.sum(weights, axis=1)
            acc = tl.dot(weights.to(value.dtype), value, acc * fade[:, None])
            top = highest
    return close(acc, total, top)


@triton.jit
def deliver_tile(
    result, lse, rows, valid, unit, epoch, mine, mine_lse, inbox, inbox_lse, value_stride, lse_stride, rank, heap_bases,
    D: tl.constexpr, WORLD: tl.constexpr, DELIVERY: tl.constexpr,
):  # fmt: skip
    """Store a reduced tile, result [TILE, D] and lse [TILE], where DELIVERY says."""
    columns = tl.arange(0, D)
    mask = valid[:, None]
    within = rows[:, None] * D + columns[None, :]
    if DELIVERY == KEEP:
        tl.store(mine + within, result.to(mine.dtype.element_ty), mask=mask)
        tl.store(mine_lse + rows, lse, mask=valid)
    else:
        source = tl.cast((epoch & 1) * WORLD + rank, tl.int64)
        place = inbox + source * value_stride + within
        place_lse = inbox_lse + source * lse_stride + rows
        if DELIVERY == WORDS:
            sent = sealed(result, epoch + 1)
            sent_lse = sealed(lse, epoch + 1)
        else:
            sent = result.to(inbox.dtype.element_ty)
            sent_lse = lse
        if DELIVERY == OWNER:
            heap.store(place, sent, rank, unit % WORLD, heap_bases, mask=mask, hint=(1, 16))
            heap.store(place_lse, sent_lse, rank, unit % WORLD, heap_bases, mask=valid)
        else:
            for turn in tl.static_range(1, WORLD + 1):
                peer = (rank + turn) % WORLD
                heap.store(place, sent, rank, peer, heap_bases, mask=mask, hint=(1, 16))
                heap.store(place_lse, sent_lse, rank, peer, heap_bases, mask=valid)


@triton.jit
def announce_unit(unit, units, arrivals, rank, heap_bases, WORLD: tl.constexpr, DELIVERY: tl.constexpr):
    """Signal a delivered unit to who combines it."""
    counter = arrivals + rank * units + unit
    if DELIVERY == OWNER:
        heap.signal(counter, unit % WORLD, rank, heap_bases)
    if DELIVERY == EVERYONE:
        signal_everyone(counter, rank, heap_bases, WORLD)


@triton.jit
def reduce_unit(
    unit, units, heads_of_group, splits, part_stride, parts, part_lse, epoch,
    mine, mine_lse, inbox, inbox_lse, value_stride, lse_stride, arrivals, rank, heap_bases,
    D: tl.constexpr, UNITS: tl.constexpr, BLOCKS: tl.constexpr, HPP: tl.constexpr, FLAG: tl.constexpr,
    TILE: tl.constexpr, CHUNK: tl.constexpr, WORLD: tl.constexpr, DELIVERY: tl.constexpr,
):  # fmt: skip
    """Merge a unit's splits and deliver it."""
    first, end = unit_rows(unit, heads_of_group, UNITS, BLOCKS, HPP, FLAG)
    for tile in range(FLAG // TILE):
        rows = first + tile * TILE + tl.arange(0, TILE)
        valid = rows < end
        result, lse = merge_parts(parts, part_lse, part_stride * D, part_stride, rows, valid, splits, D, CHUNK)
        deliver_tile(
            result, lse, rows, valid, unit, epoch, mine, mine_lse, inbox, inbox_lse, value_stride, lse_stride,
            rank, heap_bases, D, WORLD, DELIVERY,
        )  # fmt: skip
    announce_unit(unit, units, arrivals, rank, heap_bases, WORLD, DELIVERY)


@triton.jit
def merge_words(
    inbox, inbox_lse, value_stride, lse_stride, rows, valid, number, status, spin_limit,
    D: tl.constexpr, WORLD: tl.constexpr,
):  # fmt: skip
    """``merge_parts`` of all ranks' words, polled until they have come in."""
    ROWS: tl.constexpr = rows.shape[0]
    source = tl.arange(0, triton.next_power_of_2(WORLD))
    columns = tl.arange(0, D)
    there = (source < WORLD)[:, None] & valid[None, :]
    place = inbox + source[:, None, None] * value_stride + rows[None, :, None] * D + columns[None, None, :]
    tile = await_words(place, number, there[:, :, None], status, spin_limit)
    place_lse = inbox_lse + source[:, None] * lse_stride + rows[None, :]
    lse = await_words(place_lse, number, there, status, spin_limit)
    acc, total, top = absorb(
        tl.zeros((ROWS, D), dtype=tl.float32), tl.zeros((ROWS,), dtype=tl.float32),
        tl.full((ROWS,), float("-inf"), dtype=tl.float32), tile, tl.where(there, lse, float("-inf")),
    )  # fmt: skip
    return close(acc, total, top)


@triton.jit
def combine_unit(
    unit, units, total_rows, heads_of_group, epoch, inbox, inbox_lse, value_stride, lse_stride, outbox, out,
    arrivals, returns, rank, heap_bases, status, spin_limit,
    D: tl.constexpr, UNITS: tl.constexpr, BLOCKS: tl.constexpr, HPP: tl.constexpr, FLAG: tl.constexpr,
    TILE: tl.constexpr, CHUNK: tl.constexpr, WORLD: tl.constexpr, DELIVERY: tl.constexpr, SLOTS: tl.constexpr,
    WAIT: tl.constexpr,
):  # fmt: skip
    """Merge all ranks' parts of a unit, in the order of the ranks so that all get the same bits, into ``out``.

    WAIT: until they have come in. OWNER: only the unit's owner merges, and returns the output to every rank.
    """
    first, end = unit_rows(unit, heads_of_group, UNITS, BLOCKS, HPP, FLAG)
    columns = tl.arange(0, D)
    slot = epoch & (SLOTS - 1)
    inbox += tl.cast(slot * WORLD, tl.int64) * value_stride
    inbox_lse += tl.cast(slot * WORLD, tl.int64) * lse_stride
    outbox += tl.cast(slot * total_rows, tl.int64) * D
    combines = True
    if DELIVERY == OWNER:
        combines = unit % WORLD == rank
    if combines:
        if WAIT and DELIVERY != WORDS:
            wait_for_everyone(arrivals + unit, units, epoch + 1, status, spin_limit, WORLD)
        for tile in range(FLAG // TILE):
            rows = first + tile * TILE + tl.arange(0, TILE)
            valid = rows < end
            if DELIVERY == WORDS:
                result, _ = merge_words(
                    inbox, inbox_lse, value_stride, lse_stride, rows, valid, epoch + 1, status, spin_limit, D, WORLD
                )
            else:
                result, _ = merge_parts(
                    inbox, inbox_lse, value_stride, lse_stride, rows, valid, WORLD, D, CHUNK
                )
            within = rows[:, None] * D + columns[None, :]
            mask = valid[:, None]
            result = result.to(out.dtype.element_ty)
            if DELIVERY == OWNER:
                for turn in tl.static_range(1, WORLD + 1):
                    peer = (rank + turn) % WORLD
                    heap.store(outbox + within, result, rank, peer, heap_bases, mask=mask, hint=(1, 16))
            else:
                tl.store(out + within, result, mask=mask)
        if DELIVERY == OWNER:
            signal_everyone(returns + unit, rank, heap_bases, WORLD)
    if DELIVERY == OWNER:
        heap.wait(returns + unit, epoch + 1, status, spin_limit)
        for tile in range(FLAG // TILE):
            rows = first + tile * TILE + tl.arange(0, TILE)
            within = rows[:, None] * D + columns[None, :]
            mask = (rows < end)[:, None]
            tl.store(out + within, tl.load(outbox + within, mask=mask, other=0.0), mask=mask)


@triton.jit(
    do_not_specialize=[
        "groups", "units", "total_rows", "heads_of_group", "kv_heads", "splits", "table_width", "leaving", "rank",
        "spin_limit",
    ]
)  # fmt: skip
def attend_kernel(
    q, keys, values, table, lengths, out, scale,
    groups, units, total_rows, heads_of_group, kv_heads, splits, table_width,
    parts, part_lse, mine, mine_lse, inbox, inbox_lse, value_stride, lse_stride, outbox,
    state, arrived, arrivals, returns, leaving, rank, heap_bases, status, spin_limit,
    D: tl.constexpr, HEADS: tl.constexpr, BLOCK_N: tl.constexpr, PAGE: tl.constexpr, CAP: tl.constexpr,
    AHEAD: tl.constexpr, HEADS_FIRST: tl.constexpr,
    UNITS: tl.constexpr, BLOCKS: tl.constexpr, HPP: tl.constexpr, FLAG: tl.constexpr, TILE: tl.constexpr,
    PART_CHUNK: tl.constexpr, CHUNK: tl.constexpr, WORLD: tl.constexpr, REDUCER: tl.constexpr, DELIVERY: tl.constexpr,
    COMBINE: tl.constexpr,
):  # fmt: skip
    """Split-KV attention: groups * splits programs; and, unless REDUCER is ELSEWHERE, all that follows up to COMBINE.

    HEADS_FIRST: neighbouring programs attend to one split of different heads, which lie side by side in the cache;
    otherwise to different splits of the same heads. TRAILING: ``units`` more programs come behind. ``leaving`` programs
    share the epoch where this kernel combines.
    """
    pid = tl.program_id(0)
    epoch = tl.load(state)
    target = (epoch + 1) * splits
    first_unit = 0
    last_unit = 0
    if pid < groups * splits:
        if HEADS_FIRST:
            group = pid % groups
            split = pid // groups
        else:
            group = pid // splits
            split = pid % splits
        kv_row = group // BLOCKS
        block = group % BLOCKS
        sequence = kv_row // kv_heads
        first_row = kv_row * heads_of_group + block * HPP
        end_row = kv_row * heads_of_group + tl.minimum(heads_of_group, (block + 1) * HPP)
        length = tl.load(lengths + sequence)
        # Splits begin at multiples of BLOCK_N, so that a step that fits a page lies in one.
        share = tl.cdiv(tl.cdiv(length, splits), BLOCK_N) * BLOCK_N
        result, lse = attend(
            q, keys, values, table + tl.cast(sequence, tl.int64) * table_width, first_row, end_row, kv_row % kv_heads,
            kv_heads, split * share, tl.minimum(length, (split + 1) * share), scale,
            D, HEADS, BLOCK_N, PAGE, CAP, AHEAD,
        )  # fmt: skip
        rows = first_row + tl.arange(0, HEADS)
        columns = tl.arange(0, D)
        place = tl.cast(split, tl.int64) * total_rows + rows
        mask = (rows < end_row)[:, None]
        tl.store(parts + place[:, None] * D + columns[None, :], result, mask=mask)
        tl.store(part_lse + place, lse, mask=rows < end_row)
        if REDUCER != ELSEWHERE:
            tl.debug_barrier()
            before = tl.atomic_add(arrived + group, 1, sem="acq_rel", scope="gpu")
            if REDUCER == LAST:
                if before + 1 == target:
                    first_unit = group * UNITS
                    last_unit = first_unit + UNITS
    elif REDUCER == TRAILING:
        first_unit = pid - groups * splits
        last_unit = first_unit + 1
        heap.wait(arrived + first_unit // UNITS, target, status, spin_limit)
    if REDUCER != ELSEWHERE:
        for unit in range(first_unit, last_unit):
            reduce_unit(
                unit, units, heads_of_group, splits, total_rows, parts, part_lse, epoch,
                mine, mine_lse, inbox, inbox_lse, value_stride, lse_stride, arrivals, rank, heap_bases,
                D, UNITS, BLOCKS, HPP, FLAG, TILE, PART_CHUNK, WORLD, DELIVERY,
            )  # fmt: skip
        if COMBINE:
            for unit in range(first_unit, last_unit):
                combine_unit(
                    unit, units, total_rows, heads_of_group, epoch, inbox, inbox_lse, value_stride, lse_stride,
                    outbox, out, arrivals, returns, rank, heap_bases, status, spin_limit,
                    D, UNITS, BLOCKS, HPP, FLAG, TILE, CHUNK, WORLD, DELIVERY, 2, True,
                )  # fmt: skip
            if first_unit < last_unit:
                leave(state, leaving)


@triton.jit(
    do_not_specialize=["units", "total_rows", "heads_of_group", "splits", "leaving", "rank", "spin_limit"]
)  # fmt: skip
def reduce_kernel(
    out, units, total_rows, heads_of_group, splits,
    parts, part_lse, mine, mine_lse, inbox, inbox_lse, value_stride, lse_stride, outbox,
    state, arrivals, returns, leaving, rank, heap_bases, status, spin_limit,
    D: tl.constexpr, UNITS: tl.constexpr, BLOCKS: tl.constexpr, HPP: tl.constexpr, FLAG: tl.constexpr,
    TILE: tl.constexpr, PART_CHUNK: tl.constexpr, CHUNK: tl.constexpr, WORLD: tl.constexpr, DELIVERY: tl.constexpr,
    COMBINE: tl.constexpr,
):  # fmt: skip
    """What follows the attention, one program a unit, as a kernel of its own."""
    unit = tl.program_id(0)
    epoch = tl.load(state)
    reduce_unit(
        unit, units, heads_of_group, splits, total_rows, parts, part_lse, epoch,
        mine, mine_lse, inbox, inbox_lse, value_stride, lse_stride, arrivals, rank, heap_bases,
        D, UNITS, BLOCKS, HPP, FLAG, TILE, PART_CHUNK, WORLD, DELIVERY,
    )  # fmt: skip
    if COMBINE:
        combine_unit(
            unit, units, total_rows, heads_of_group, epoch, inbox, inbox_lse, value_stride, lse_stride, outbox, out,
            arrivals, returns, rank, heap_bases, status, spin_limit,
            D, UNITS, BLOCKS, HPP, FLAG, TILE, CHUNK, WORLD, DELIVERY, 2, True,
        )  # fmt: skip
        leave(state, leaving)


@triton.jit(do_not_specialize=["units", "heads_of_group", "rank", "spin_limit"])
def push_kernel(
    units, heads_of_group, mine, mine_lse, inbox, inbox_lse, value_stride, lse_stride,
    state, arrivals, rank, heap_bases, status, spin_limit,
    D: tl.constexpr, UNITS: tl.constexpr, BLOCKS: tl.constexpr, HPP: tl.constexpr, FLAG: tl.constexpr,
    TILE: tl.constexpr, WORLD: tl.constexpr, DELIVERY: tl.constexpr, WAIT: tl.constexpr,
):  # fmt: skip
    """Our records to who combines them, one program a unit. WAIT: then also until all ranks' are here: an all-gather."""
    unit = tl.program_id(0)
    epoch = tl.load(state)
    first, end = unit_rows(unit, heads_of_group, UNITS, BLOCKS, HPP, FLAG)
    columns = tl.arange(0, D)
    for tile in range(FLAG // TILE):
        rows = first + tile * TILE + tl.arange(0, TILE)
        valid = rows < end
        mask = valid[:, None]
        result = tl.load(mine + rows[:, None] * D + columns[None, :], mask=mask, other=0.0)
        lse = tl.load(mine_lse + rows, mask=valid, other=float("-inf"))
        deliver_tile(
            result, lse, rows, valid, unit, epoch, mine, mine_lse, inbox, inbox_lse, value_stride, lse_stride,
            rank, heap_bases, D, WORLD, DELIVERY,
        )  # fmt: skip
    announce_unit(unit, units, arrivals, rank, heap_bases, WORLD, DELIVERY)
    if WAIT:
        wait_for_everyone(arrivals + unit, units, epoch + 1, status, spin_limit, WORLD)


@triton.jit(do_not_specialize=["units", "total_rows", "heads_of_group", "leaving", "rank", "spin_limit"])
def combine_kernel(
    out, units, total_rows, heads_of_group, inbox, inbox_lse, value_stride, lse_stride, outbox,
    state, arrivals, returns, leaving, rank, heap_bases, status, spin_limit,
    D: tl.constexpr, UNITS: tl.constexpr, BLOCKS: tl.constexpr, HPP: tl.constexpr, FLAG: tl.constexpr,
    TILE: tl.constexpr, CHUNK: tl.constexpr, WORLD: tl.constexpr, DELIVERY: tl.constexpr, SLOTS: tl.constexpr,
    WAIT: tl.constexpr,
):  # fmt: skip
    """The combination, one program a unit, as the last kernel of a call. The library gathers into one slot only."""
    epoch = tl.load(state)
    combine_unit(
        tl.program_id(0), units, total_rows, heads_of_group, epoch, inbox, inbox_lse, value_stride, lse_stride,
        outbox, out, arrivals, returns, rank, heap_bases, status, spin_limit,
        D, UNITS, BLOCKS, HPP, FLAG, TILE, CHUNK, WORLD, DELIVERY, SLOTS, WAIT,
    )  # fmt: skip
    leave(state, leaving)
