"""The all-reduce of a block, whoever made its parts: sent, waited for and summed, by signals, LL or sentinel words.

``one_shot``: every rank gets every part and sums. ``two_shot``: the block's owner, rank block % WORLD, sums and sends
the result to all. Our own part takes the same way as the others', so all ranks add the same numbers in the same order.
Why launches may follow each other without a barrier: ``gemm_all_reduce/device.py``.

An inbox is a row of blocks, each BLOCK_M rows of ``pitch`` elements: of one_shot [2 slots, WORLD, blocks], of two_shot
[2, WORLD, owned blocks], its results [2, blocks]; or of as many words as hold them. Counters are [2, blocks].
"""

from __future__ import annotations

from collections import namedtuple

import triton
import triton.language as tl
from triton.language.extra.cuda import num_threads

from autotune.heap import device as heap
from autotune.kernels.primitives.counters import wait_in_slot
from autotune.kernels.primitives.ll import ll_flag, ll_sum, ll_wait, packed, per_word
from autotune.kernels.primitives.scales import quantised, received
from autotune.kernels.primitives.sentinel import pairs, sentinel_bits, sentinel_take, together
from autotune.kernels.primitives.tiles import finished

SIGNAL = tl.constexpr(0)
"""Data in its own type, then a signal."""
LL = tl.constexpr(1)
"""Words of data and flag: ``ll.py``."""
SENTINEL = tl.constexpr(2)
"""Data alone, polled until it is there: ``sentinel.py``."""

PROTOCOLS = {"signal": SIGNAL, "ll": LL, "sentinel": SENTINEL}

ONE_SHOT = tl.constexpr(0)
TWO_SHOT = tl.constexpr(1)

Exchange = namedtuple("Exchange", "TYPE WORLD MODE PROTOCOL BLOCK_M BLOCK_N SIGNALS", defaults=(1,))
"""What is exchanged: elements of TYPE; BLOCK_M rows, of which a block has BLOCK_N columns. Each rank sends its part
with SIGNALS signals.
"""

Boxes = namedtuple("Boxes", "inbox results arrivals returns scales", defaults=(None,))
"""Inboxes and their counters, in this rank's heap. ``scales``, of an inbox of fp8: fp32, one for each row of a block.
"""

Block = namedtuple("Block", "number blocks rows pitch columns first row owned", defaults=(None, None, None, None))
"""One of ``blocks``: its rows that exist, the columns where not all do, and the first row where those before belong to
another block. Of a reduce-scatter, whose ranks get ``owned`` rows each, also its first row in the product.
"""


@triton.jit
def inside_block(block, rows, columns, PER: tl.constexpr, rank):
    """Offsets of words at ``rows`` and ``columns`` of a block in an inbox, each of PER elements, and which exist: in a
    reduce-scatter those that ``rank`` gets.
    """
    exists = rows < block.rows
    if block.first is not None:
        exists = exists & (rows >= block.first)
    if block.owned is not None:
        ahead = rank * block.owned - block.row
        exists = exists & (rows >= ahead) & (rows < ahead + block.owned)
    if block.columns is not None:
        exists = exists & (columns < block.columns // PER)
    return rows * (block.pitch // PER) + columns, exists


@triton.jit
def place_of(index, block, FORM: tl.constexpr, PER: tl.constexpr):
    """The word of PER elements at which block ``index`` of an inbox begins, int64."""
    return tl.cast(index, tl.int64) * (FORM.BLOCK_M * (block.pitch // PER))


@triton.jit
def deliver(
    part, inbox, index, counter, first, block, epoch, peers, FORM: tl.constexpr, PEERS: tl.constexpr, scales=None,
    column=0,
):  # fmt: skip
    """Send a part, from ``column`` on, rounded to TYPE or as fp8 with ``scales``, as block ``index`` of the inbox of
    PEERS ranks from ``first`` on: one, or all.
    """
    of_rows = None
    PER: tl.constexpr = per_word(FORM.TYPE, FORM.PROTOCOL == LL)
    if FORM.PROTOCOL == LL:
        value = packed(part.to(FORM.TYPE), epoch)
    elif FORM.PROTOCOL == SENTINEL:
        value = sentinel_bits(part.to(FORM.TYPE))
    elif scales is not None:
        value, of_rows = quantised(part, inbox.dtype.element_ty, True)
    else:
        value = part.to(FORM.TYPE)
    for turn in tl.static_range(PEERS):
        peer = (first + turn) % FORM.WORLD
        if of_rows is not None:
            places = scales + tl.cast(index, tl.int64) * FORM.BLOCK_M + tl.arange(0, FORM.BLOCK_M)
            inside = tl.arange(0, FORM.BLOCK_M) < block.rows
            heap.store(places, of_rows, peers.rank, peer, peers.bases, mask=inside)
        columns = column // PER + tl.arange(0, part.shape[1] // PER)
        offsets, exists = inside_block(block, tl.arange(0, FORM.BLOCK_M)[:, None], columns[None, :], PER, peer)
        heap.store(
            inbox + place_of(index, block, FORM, PER) + offsets,
            value,
            peers.rank,
            peer,
            peers.bases,
            mask=exists,
            hint=(1, 16),
        )
    if FORM.PROTOCOL == SIGNAL:
        if PEERS == 1:
            heap.signal(counter, first, peers)
        else:
            heap.signal_each(counter, peers, FORM.WORLD, 0)


@triton.jit
def polled(
    inbox, index, apart, first, block, epoch, peers, FORM: tl.constexpr, SOURCES: tl.constexpr,
    TOGETHER: tl.constexpr, PER: tl.constexpr,
):  # fmt: skip
    """The sum of what TOGETHER sources from ``first`` on sent in words, polled at once.

    A block is one dimension: of [sources, rows, columns] Triton (3.6) deals the sources out to threads before the rows.
    """
    WORDS: tl.constexpr = FORM.BLOCK_N // PER
    sources = first + tl.arange(0, TOGETHER)
    at = tl.arange(0, FORM.BLOCK_M * WORDS)
    offsets, exists = inside_block(block, at // WORDS, at % WORDS, PER, peers.rank)
    pointers = inbox + place_of(index + sources * apart, block, FORM, PER)[:, None] + offsets[None, :]
    wanted = (sources < SOURCES)[:, None] & exists[None, :]
    if FORM.PROTOCOL == LL:
        words = ll_wait(pointers, ll_flag(epoch), wanted, peers)
    else:
        words = sentinel_take(pointers, wanted, peers, PER == 2)
    words = tl.reshape(words, (TOGETHER, FORM.BLOCK_M, WORDS))
    if FORM.PROTOCOL == LL or PER == 2:
        part = ll_sum(words, FORM.TYPE)
    else:
        part = tl.sum(words.to(FORM.TYPE, bitcast=True).to(tl.float32), axis=0)
    return part


@triton.jit
def collect(
    inbox, index, apart, counter, block, epoch, peers, FORM: tl.constexpr, SOURCES: tl.constexpr,
    SIGNALS: tl.constexpr, scales=None,
):  # fmt: skip
    """Wait for what SOURCES ranks delivered of a block, with SIGNALS signals in all, and add it up: fp32
    [BLOCK_M, BLOCK_N]. What source number s sent is block ``index`` + s * ``apart``; of words as many sources as
    registers hold are polled at once.
    """
    THREADS: tl.constexpr = num_threads() if heap.compiles_for_cuda() else 1
    PAIRS: tl.constexpr = FORM.PROTOCOL == SENTINEL and pairs(FORM.TYPE, FORM.BLOCK_M * FORM.BLOCK_N, THREADS)
    PER: tl.constexpr = per_word(FORM.TYPE, FORM.PROTOCOL == LL or PAIRS)
    if FORM.PROTOCOL != SIGNAL:
        if PAIRS:
            inbox = inbox.to(tl.pointer_type(tl.int32))
        # Of 1024 threads' 64 registers, sums and residual take half: beside 32 of words 8 to 14 spill.
        TWICE: tl.constexpr = FORM.PROTOCOL == LL or THREADS > 512
        REGISTERS: tl.constexpr = FORM.BLOCK_M * FORM.BLOCK_N // PER * (2 if TWICE else 1)
        TOGETHER: tl.constexpr = together(SOURCES, REGISTERS)
        if TOGETHER >= SOURCES:
            acc = polled(inbox, index, apart, 0, block, epoch, peers, FORM, SOURCES, TOGETHER, PER)
        else:
            acc = tl.zeros((FORM.BLOCK_M, FORM.BLOCK_N), dtype=tl.float32)
            for first in tl.range(0, SOURCES, TOGETHER):
                acc += polled(inbox, index, apart, first, block, epoch, peers, FORM, SOURCES, TOGETHER, PER)
    else:
        columns = tl.arange(0, FORM.BLOCK_N)
        offsets, exists = inside_block(block, tl.arange(0, FORM.BLOCK_M)[:, None], columns[None, :], 1, peers.rank)
        # Before the wait, for they hang on no peer.
        first, step = inbox + place_of(index, block, FORM, 1) + offsets, place_of(apart, block, FORM, 1)
        wait_in_slot(counter, epoch, SIGNALS, peers)
        acc = tl.zeros((FORM.BLOCK_M, FORM.BLOCK_N), dtype=tl.float32)
        for source in tl.static_range(SOURCES):
            at = index + source * apart
            part = tl.load(first + source * step, mask=exists, other=0.0)
            if scales is not None:
                places = scales + tl.cast(at, tl.int64) * FORM.BLOCK_M + tl.arange(0, FORM.BLOCK_M)
                inside = tl.arange(0, FORM.BLOCK_M) < block.rows
                part = received(part, tl.load(places, mask=inside, other=0.0))
            acc += part.to(tl.float32)
    return acc


@triton.jit
def share_part(part, block, epoch, boxes, peers, FORM: tl.constexpr, column=0):
    """Send our part of a block, its columns from ``column`` on, to those who sum it."""
    slot = (epoch & 1).to(tl.int32)
    counter = boxes.arrivals + slot * block.blocks + block.number
    box = slot * FORM.WORLD + peers.rank
    if FORM.MODE == ONE_SHOT:
        index = box * block.blocks + block.number
        deliver(
            part, boxes.inbox, index, counter, peers.rank, block, epoch, peers, FORM, FORM.WORLD, boxes.scales, column
        )
    else:
        index = box * tl.cdiv(block.blocks, FORM.WORLD) + block.number // FORM.WORLD
        owner = block.number % FORM.WORLD
        deliver(part, boxes.inbox, index, counter, owner, block, epoch, peers, FORM, 1, boxes.scales, column)


@triton.jit
def summed(out, row, column, block, epoch, boxes, peers, FORM: tl.constexpr):
    """The sum of all ranks' parts of a block, fp32 [BLOCK_M, BLOCK_N]; in two_shot + bias + residual, if ``out`` has
    any.
    """
    slot = (epoch & 1).to(tl.int32)
    here = slot * block.blocks + block.number
    SIGNALS: tl.constexpr = FORM.WORLD * FORM.SIGNALS
    if FORM.MODE == ONE_SHOT:
        first = slot * FORM.WORLD * block.blocks + block.number
        acc = collect(
            boxes.inbox, first, block.blocks, boxes.arrivals + here, block, epoch, peers, FORM, FORM.WORLD, SIGNALS,
            boxes.scales,
        )  # fmt: skip
    else:
        if block.number % FORM.WORLD == peers.rank:
            owned = tl.cdiv(block.blocks, FORM.WORLD)
            first = slot * FORM.WORLD * owned + block.number // FORM.WORLD
            total = collect(
                boxes.inbox, first, owned, boxes.arrivals + here, block, epoch, peers, FORM, FORM.WORLD, SIGNALS,
                boxes.scales,
            )  # fmt: skip
            total = finished(total, out, row, column)
            deliver(total, boxes.results, here, boxes.returns + here, peers.rank, block, epoch, peers, FORM, FORM.WORLD)
        acc = collect(boxes.results, here, 0, boxes.returns + here, block, epoch, peers, FORM, 1, 1)
    return acc
