"""Device code of flash decode: attention, each program to its share of the KV tokens, and the kernels.

Rows are those of the output, row = sequence * q_heads + query head. A *head block* is what one program attends for: up
to HPP query heads of one KV head; a *group* is a head block of one sequence. A *unit* is TRANSFER_HEADS heads of a
group: what one signal covers, and what one program reduces, delivers and combines, TILE heads at a time. Units have the
same numbers on every rank. Why launches may follow each other without a barrier, and why no wait can starve its
producer, stands at the top of ``exchange.py``.
"""

from __future__ import annotations

from collections import namedtuple

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.flash_decode.exchange import (
    Parts,
    Records,
    Units,
    combine_unit,
    combines_here,
    deliver_unit,
    home_of_unit,
    part_of,
    rows_of_unit,
    wait_for_unit,
)
from autotune.kernels.flash_decode.shares import (
    blocks_of,
    blocks_of_all,
    heads_of,
    programs_of,
    programs_of_sequence,
    sequence_of,
    share_of,
)
from autotune.kernels.primitives import trace as traces
from autotune.kernels.primitives.counters import finish_unordered, read_epoch
from autotune.kernels.primitives.known import known
from autotune.kernels.primitives.softmax import finalize

TRAILED = tl.constexpr(traces.MOST_EVENTS.value - 1)
"""The number of a trailing program's wait for its parts, in a trace."""

ELSEWHERE = tl.constexpr(0)
"""The reducer of parts: another kernel, the program whose part came last, or programs behind the attending ones."""
LAST = tl.constexpr(1)
TRAILING = tl.constexpr(2)


@triton.jit
def cache_rows(table, start, end, PAGE: tl.constexpr, BLOCK_N: tl.constexpr):
    """The entries of the block table that ``token_rows`` needs for BLOCK_N tokens from ``start``: one page, or one per
    token.
    """
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
def capped(logits, CAP: tl.constexpr):
    """CAP * tanh(logits / CAP), of logits in units of log2.

    The first line is off by the last digit of the bound, which shows in the weights where the bound is large. There
    most logits are a small part x of it, and tanh(x) is x times a series in its square, exact to fp32 up to a quarter.
    """
    bound: tl.constexpr = CAP * 1.4426950408889634
    value = bound - 2 * bound / (1.0 + tl.exp2(logits * (2.0 / CAP)))
    if CAP > 256:
        part = logits * (1.0 / bound)
        square = part * part
        series = -1.0 / 3 + square * (2.0 / 15 + square * (-17.0 / 315 + square * (62.0 / 2835)))
        value = tl.where(square < 1.0 / 16, logits + logits * (square * series), value)
    return value


Attention = namedtuple("Attention", "D ROPE HEADS BLOCK_N PAGE CAP AHEAD")
"""HEADS rows attend to BLOCK_N tokens at once. ROPE: a key has so many elements more, and its first D are the value.
AHEAD: the block table is read a step before its pages, so that it is off the way to them.
"""

Cache = namedtuple("Cache", "k v table kv_heads key_scale value_scale")
"""Keys and values of a sequence, by its block table. Of fp8 they are multiplied in fp16, or in fp32 where the queries
are, and by the numbers behind ``key_scale`` and ``value_scale``.
"""


@triton.jit
def unit_of(query):
    """A power of two [HEADS] that brings the largest number of each row of a query [HEADS, D] to 1."""
    largest = tl.max(tl.abs(query.to(tl.float32)), axis=1)
    return tl.exp2(tl.floor(tl.log2(tl.maximum(largest, 1e-30))))


@triton.jit
def in_units(query, unit):
    return (query.to(tl.float32) / unit[:, None]).to(tl.float16)


@triton.jit
def attend(q, cache, first_row, end_row, kv_head, begin, end, scale, FORM: tl.constexpr):
    """Attention of HEADS rows (those from ``end_row`` are padding) over tokens [begin, end) of one sequence.

    Returns values [HEADS, D] and lse [HEADS] as in ``primitives/softmax.py``. ``scale`` takes products to logits in
    units of log2. Beside keys of fp8 queries are fp16: two numbers of fp8 become fp16 in one instruction, bf16 in five,
    two of them slow. fp16 has fewer exponents than bf16, hence the units.
    """
    D: tl.constexpr = FORM.D
    ROPE: tl.constexpr = FORM.ROPE
    HEADS: tl.constexpr = FORM.HEADS
    PAGE: tl.constexpr = FORM.PAGE
    BLOCK_N: tl.constexpr = FORM.BLOCK_N
    heads = tl.arange(0, HEADS)
    columns = tl.arange(0, D)
    there = (first_row + heads < end_row)[:, None]
    row = q + (first_row + heads)[:, None] * (D + ROPE)
    query = tl.load(row + columns[None, :], mask=there, other=0.0)
    if ROPE > 0:
        turned = D + tl.arange(0, ROPE)
        query_turned = tl.load(row + turned[None, :], mask=there, other=0.0)
    acc = tl.zeros((HEADS, D), dtype=tl.float32)
    total = tl.zeros((HEADS,), dtype=tl.float32)
    running_max = tl.full((HEADS,), float("-inf"), dtype=tl.float32)
    if cache.key_scale is not None:
        scale *= tl.load(cache.key_scale)
    scales = tl.full((HEADS,), 1.0, dtype=tl.float32) * scale
    if cache.k.dtype.element_ty.is_fp8() and query.dtype == tl.bfloat16:
        unit = unit_of(query)
        if ROPE > 0:
            unit = tl.maximum(unit, unit_of(query_turned))
            query_turned = in_units(query_turned, unit)
        query = in_units(query, unit)
        scales *= unit
    width = cache.kv_heads * (D + ROPE)
    keys = cache.k + kv_head * (D + ROPE)
    values = keys if ROPE > 0 else cache.v + kv_head * D
    if begin < end:
        pages = cache_rows(cache.table, begin, end, PAGE, BLOCK_N)
        for start in range(begin, end, BLOCK_N):
            if not FORM.AHEAD:
                pages = cache_rows(cache.table, start, end, PAGE, BLOCK_N)
            rows = token_rows(pages, start, end, PAGE, BLOCK_N)[:, None] * width
            place = rows + columns[None, :]
            if FORM.AHEAD:
                pages = cache_rows(cache.table, start + BLOCK_N, end, PAGE, BLOCK_N)
            key = tl.load(keys + place).to(query.dtype)
            if ROPE > 0:
                value = key
                key_turned = tl.load(keys + rows + turned[None, :]).to(query.dtype)
                logits = tl.dot(query_turned, tl.trans(key_turned), tl.dot(query, tl.trans(key)))
            else:
                value = tl.load(values + place).to(query.dtype)
                logits = tl.dot(query, tl.trans(key))
            logits *= scales[:, None]
            if FORM.CAP > 0:
                logits = capped(logits, FORM.CAP)
            logits = tl.where((start + tl.arange(0, BLOCK_N) < end)[None, :], logits, float("-inf"))
            new_max = tl.maximum(running_max, tl.max(logits, axis=1))
            weights = tl.exp2(logits - new_max[:, None])
            alpha = tl.exp2(running_max - new_max)
            total = total * alpha + tl.sum(weights, axis=1)
            acc = tl.dot(weights.to(value.dtype), value, acc * alpha[:, None])
            running_max = new_max
    if cache.value_scale is not None:
        acc *= tl.load(cache.value_scale)
    return finalize(acc, total, running_max)


@triton.jit
def elements_of(total_rows, D: tl.constexpr, WORLD: tl.constexpr, OWNED: tl.constexpr):
    """Elements of a rank's result, int64: of all heads, or of the OWNED ones."""
    rows = total_rows // WORLD if OWNED else total_rows
    return tl.cast(rows, tl.int64) * D


@triton.jit(
    do_not_specialize=[
        "head_blocks", "programs", "batch", "units", "total_rows", "heads_of_group", "kv_heads", "table_width",
        "finishing", "rank", "spin_limit",
    ]
)  # fmt: skip
def attend_kernel(
    q, keys, values, table, lengths, key_scales, value_scales, out, scale,
    head_blocks, programs, batch, units, total_rows, heads_of_group, kv_heads, table_width,
    parts, part_lse, mine, mine_lse, inbox, inbox_lse, value_stride, lse_stride, outbox,
    epoch_counter, arrived, arrivals, returns, finishing, trace, rank, heap_bases, status, spin_limit,
    D: tl.constexpr, ROPE: tl.constexpr, HEADS: tl.constexpr, BLOCK_N: tl.constexpr, PAGE: tl.constexpr,
    CAP: tl.constexpr, AHEAD: tl.constexpr, HEADS_FIRST: tl.constexpr, SCAN: tl.constexpr,
    UNITS: tl.constexpr, BLOCKS: tl.constexpr, HPP: tl.constexpr, TRANSFER_HEADS: tl.constexpr, TILE: tl.constexpr,
    PART_CHUNK: tl.constexpr, CHUNK: tl.constexpr, WORLD: tl.constexpr, OWNED: tl.constexpr, REDUCER: tl.constexpr,
    DELIVERY: tl.constexpr, COMBINE: tl.constexpr, SCALE_OF_HEAD: tl.constexpr, MEMORY: tl.constexpr,
    APART: tl.constexpr,
):  # fmt: skip
    """Attention: head_blocks * programs programs; and, unless REDUCER is ELSEWHERE, all that follows up to COMBINE.

    HEADS_FIRST: the heads vary fastest across program ids, so that neighbouring programs attend to the same tokens of
    heads that lie side by side in the cache; otherwise the tokens do. TRAILING: ``units`` more programs come behind.
    ``finishing``: groups, or units, that are counted where this kernel combines. APART: see
    ``shares.py``. MEMORY is for ``tune taxes`` alone.
    """
    peers = heap.Peers(rank, heap_bases, status, spin_limit)
    records = Records(
        units, total_rows, heads_of_group, mine, mine_lse, inbox, inbox_lse, value_stride, lse_stride, arrivals, outbox,
        returns,
    )  # fmt: skip
    FORM: tl.constexpr = known(Units, D, UNITS, BLOCKS, HPP, TRANSFER_HEADS, TILE, WORLD, OWNED, PART_CHUNK, CHUNK)
    ATTENTION: tl.constexpr = known(Attention, D, ROPE, HEADS, BLOCK_N, PAGE, CAP, AHEAD)
    pid = tl.program_id(0)
    epoch = read_epoch(epoch_counter)
    attending = head_blocks * programs
    first_group = 0
    groups = 0
    first_unit = 0
    units_here = UNITS
    if pid < attending:
        head_block, program, kv_head, first_head, end_head = heads_of(
            pid, head_blocks, programs, heads_of_group, HEADS_FIRST, BLOCKS, HPP
        )
        of_head = kv_head if SCALE_OF_HEAD else 0
        q_heads = kv_heads * heads_of_group
        traces.begin(trace, traces.TILE, 0, head_block * programs + program)
        if APART:
            sequence, begin, block, stop, total = 0, 0, 0, 0, 0
        else:
            total = blocks_of_all(lengths, batch, BLOCK_N, SCAN)
            block, stop = share_of(program, total, programs)
            sequence, begin = sequence_of(block, lengths, batch, BLOCK_N, SCAN)
        while (sequence < batch) if APART else (block < stop):
            length = tl.load(lengths + sequence)
            end = begin + blocks_of(length, BLOCK_N)
            if APART:
                block, stop = share_of(program, end, programs)
            cache = Cache(
                keys, values, table + tl.cast(sequence, tl.int64) * table_width, kv_heads,
                key_scales + of_head if key_scales is not None else None,
                value_scales + of_head if value_scales is not None else None,
            )  # fmt: skip
            result, lse = attend(
                q, cache, sequence * q_heads + first_head, sequence * q_heads + end_head, kv_head,
                (block - begin) * BLOCK_N, tl.minimum(length, (tl.minimum(end, stop) - begin) * BLOCK_N), scale,
                ATTENTION,
            )  # fmt: skip
            rows = part_of(sequence, program, programs, APART) * q_heads + first_head + tl.arange(0, HEADS)
            mask = first_head + tl.arange(0, HEADS) < end_head
            place = parts + tl.cast(rows, tl.int64)[:, None] * D + tl.arange(0, D)[None, :]
            tl.store(place, result, mask=mask[:, None])
            tl.store(part_lse + rows, lse, mask=mask)
            group = sequence * head_blocks + head_block
            if REDUCER == TRAILING:
                tl.debug_barrier()
                tl.atomic_add(arrived + group * UNITS + tl.arange(0, UNITS), 1, sem="release", scope="gpu")
            elif REDUCER == LAST:
                tl.debug_barrier()
                before = tl.atomic_add(arrived + group, 1, sem="acq_rel", scope="gpu")
                _, sharing = programs_of(begin, end, total, programs)
                if before + 1 == sharing:
                    tl.store(arrived + group, 0)
                    first_group = tl.where(groups == 0, group, first_group)
                    groups += 1
            block = tl.minimum(end, stop)
            if not APART:
                begin = end
            sequence += 1
        traces.end(trace, traces.TILE, 0)
    elif REDUCER == TRAILING:
        first_group = (pid - attending) // UNITS
        groups = 1
        first_unit = (pid - attending) % UNITS
        units_here = 1
    if REDUCER != ELSEWHERE:
        for turn in range(groups):
            group = first_group + turn * head_blocks
            sequence = group // head_blocks
            first, count = programs_of_sequence(sequence, lengths, batch, programs, BLOCK_N, SCAN, APART)
            if REDUCER == TRAILING:
                counter = arrived + group * UNITS + first_unit
                traces.begin(trace, traces.WAIT, TRAILED, group * UNITS + first_unit)
                heap.wait(counter, count, peers)
                tl.store(counter, 0)
                traces.end(trace, traces.WAIT, TRAILED)
            found = Parts(parts, part_lse, kv_heads * heads_of_group, first, count)
            for unit in range(group * UNITS + first_unit, group * UNITS + first_unit + units_here):
                event = turn * UNITS + unit % UNITS - first_unit
                traces.begin(trace, traces.SENT, event, unit)
                deliver_unit(unit, found, epoch, records, peers, FORM, DELIVERY, MEMORY)
                traces.end(trace, traces.SENT, event)
        if COMBINE:
            if groups > 0:
                finish_unordered(epoch_counter, finishing, first_group * UNITS + first_unit == 0, groups)
            for turn in range(groups):
                group = first_group + turn * head_blocks
                for unit in range(group * UNITS + first_unit, group * UNITS + first_unit + units_here):
                    event = turn * UNITS + unit % UNITS - first_unit
                    traces.begin(trace, traces.WAIT, event, unit)
                    combine_unit(unit, out, epoch, records, peers, FORM, DELIVERY)
                    traces.end(trace, traces.WAIT, event)
            heap.seal(status, out, elements_of(total_rows, D, WORLD, OWNED))


@triton.jit(
    do_not_specialize=[
        "programs", "batch", "units", "total_rows", "heads_of_group", "kv_heads", "finishing", "rank", "spin_limit",
    ]
)  # fmt: skip
def reduce_kernel(
    out, lengths, programs, batch, units, total_rows, heads_of_group, kv_heads,
    parts, part_lse, mine, mine_lse, inbox, inbox_lse, value_stride, lse_stride, outbox,
    epoch_counter, arrivals, returns, finishing, rank, heap_bases, status, spin_limit,
    D: tl.constexpr, BLOCK_N: tl.constexpr, SCAN: tl.constexpr, UNITS: tl.constexpr, BLOCKS: tl.constexpr,
    HPP: tl.constexpr, TRANSFER_HEADS: tl.constexpr, TILE: tl.constexpr, PART_CHUNK: tl.constexpr,
    CHUNK: tl.constexpr, WORLD: tl.constexpr, OWNED: tl.constexpr, DELIVERY: tl.constexpr, COMBINE: tl.constexpr,
    APART: tl.constexpr,
):  # fmt: skip
    """The work after the attention, one program per unit, as a separate kernel."""
    peers = heap.Peers(rank, heap_bases, status, spin_limit)
    records = Records(
        units, total_rows, heads_of_group, mine, mine_lse, inbox, inbox_lse, value_stride, lse_stride, arrivals, outbox,
        returns,
    )  # fmt: skip
    FORM: tl.constexpr = known(Units, D, UNITS, BLOCKS, HPP, TRANSFER_HEADS, TILE, WORLD, OWNED, PART_CHUNK, CHUNK)
    unit = tl.program_id(0)
    epoch = read_epoch(epoch_counter)
    sequence = unit // (UNITS * BLOCKS * kv_heads)
    first, count = programs_of_sequence(sequence, lengths, batch, programs, BLOCK_N, SCAN, APART)
    found = Parts(parts, part_lse, kv_heads * heads_of_group, first, count)
    deliver_unit(unit, found, epoch, records, peers, FORM, DELIVERY)
    if COMBINE:
        finish_unordered(epoch_counter, finishing, unit == 0)
        combine_unit(unit, out, epoch, records, peers, FORM, DELIVERY)
        heap.seal(status, out, elements_of(total_rows, D, WORLD, OWNED))


@triton.jit(do_not_specialize=["units", "heads_of_group", "rank", "spin_limit"])
def push_kernel(
    units, heads_of_group, mine, mine_lse, inbox, inbox_lse, value_stride, lse_stride,
    epoch_counter, arrivals, rank, heap_bases, status, spin_limit,
    D: tl.constexpr, UNITS: tl.constexpr, BLOCKS: tl.constexpr, HPP: tl.constexpr, TRANSFER_HEADS: tl.constexpr,
    TILE: tl.constexpr, WORLD: tl.constexpr, OWNED: tl.constexpr, DELIVERY: tl.constexpr, WAIT: tl.constexpr,
):  # fmt: skip
    """Send our records to who combines them, one program per unit. WAIT: until all ranks' are where we combine, too, as
    in an all-gather or, where heads have owners, an all-to-all.
    """
    peers = heap.Peers(rank, heap_bases, status, spin_limit)
    records = Records(units, None, heads_of_group, mine, mine_lse, inbox, inbox_lse, value_stride, lse_stride, arrivals)
    FORM: tl.constexpr = known(Units, D, UNITS, BLOCKS, HPP, TRANSFER_HEADS, TILE, WORLD, OWNED)
    unit = tl.program_id(0)
    epoch = read_epoch(epoch_counter)
    deliver_unit(unit, None, epoch, records, peers, FORM, DELIVERY)
    if WAIT:
        first, _ = rows_of_unit(unit, heads_of_group, FORM)
        owner, _ = home_of_unit(first, FORM)
        if combines_here(unit, owner, rank, FORM, DELIVERY):
            wait_for_unit(unit, records, epoch, peers, WORLD)


@triton.jit(do_not_specialize=["units", "total_rows", "heads_of_group", "finishing", "rank", "spin_limit"])
def combine_kernel(
    out, units, total_rows, heads_of_group, inbox, inbox_lse, value_stride, lse_stride, outbox,
    epoch_counter, arrivals, returns, finishing, rank, heap_bases, status, spin_limit,
    D: tl.constexpr, UNITS: tl.constexpr, BLOCKS: tl.constexpr, HPP: tl.constexpr, TRANSFER_HEADS: tl.constexpr,
    TILE: tl.constexpr, CHUNK: tl.constexpr, WORLD: tl.constexpr, OWNED: tl.constexpr, DELIVERY: tl.constexpr,
    SLOTS: tl.constexpr, WAIT: tl.constexpr,
):  # fmt: skip
    """The combination, one program per unit, as the last kernel of a call. The library gathers into one slot only."""
    peers = heap.Peers(rank, heap_bases, status, spin_limit)
    records = Records(
        units, total_rows, heads_of_group, None, None, inbox, inbox_lse, value_stride, lse_stride, arrivals, outbox,
        returns,
    )  # fmt: skip
    FORM: tl.constexpr = known(Units, D, UNITS, BLOCKS, HPP, TRANSFER_HEADS, TILE, WORLD, OWNED, None, CHUNK)
    epoch = read_epoch(epoch_counter)
    finish_unordered(epoch_counter, finishing, tl.program_id(0) == 0)
    combine_unit(tl.program_id(0), out, epoch, records, peers, FORM, DELIVERY, SLOTS, WAIT)
    heap.seal(status, out, elements_of(total_rows, D, WORLD, OWNED))
