"""Device code of ``transports.py``: ways to move data to a peer, alone and as messages back and forth.

``theirs`` is the peer's memory as this rank sees it. 32-bit integers travel; sums prove that all arrived.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.primitives.ll import ll_wait, ll_words

POINTERS = tl.constexpr(0)
"""Stores through pointers; a message is followed by a signal."""
TMA = tl.constexpr(1)
"""Stores by the TMA unit; a message is followed by a signal once they are in place."""
TMA_ADD = tl.constexpr(2)
"""The same, added to what is there."""
LL = tl.constexpr(3)
"""Words of eight bytes, four of them a flag."""
SENTINEL = tl.constexpr(4)
"""Words of four bytes; one that is not there yet holds a value that is never sent."""

NOT_SENT = tl.constexpr(-(2**31))
WIDTH = tl.constexpr(32)
"""Words in a row of a descriptor: 128 bytes, as TMA swizzles at most."""


@triton.jit
def _wait_for_bulk_stores():
    """Until this program's bulk stores are in place, not only read from shared memory."""
    if heap.compiles_for_cuda():
        tl.inline_asm_elementwise(
            "cp.async.bulk.wait_group 0; fence.proxy.async; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False,
            pack=1,
        )  # fmt: skip


@triton.jit
def send_kernel(mine, theirs, rows, WAY: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_ROWS: tl.constexpr,
                BLOCK_COLUMNS: tl.constexpr):  # fmt: skip
    """Move [rows, COLUMNS] to the peer, block by block. ``mine`` and ``theirs``: descriptors, or pointers."""
    across: tl.constexpr = COLUMNS // BLOCK_COLUMNS
    for block in range(tl.program_id(0), tl.cdiv(rows, BLOCK_ROWS) * across, tl.num_programs(0)):
        row, column = block // across * BLOCK_ROWS, block % across * BLOCK_COLUMNS
        if WAY == POINTERS:
            inside = (row + tl.arange(0, BLOCK_ROWS))[:, None] * COLUMNS + column + tl.arange(0, BLOCK_COLUMNS)[None, :]
            tl.store(theirs + inside, tl.load(mine + inside))
        elif WAY == TMA:
            theirs.store([row, column], mine.load([row, column]))
        else:
            theirs.atomic_add([row, column], mine.load([row, column]))
    if WAY != POINTERS:
        _wait_for_bulk_stores()


@triton.jit
def add_kernel(inbox, out, count, BLOCK: tl.constexpr):
    """Add an inbox to ``out``: what a receiver does that is not spared it."""
    for begin in range(tl.program_id(0) * BLOCK, count, tl.num_programs(0) * BLOCK):
        inside = begin + tl.arange(0, BLOCK)
        mask = inside < count
        tl.store(out + inside, tl.load(out + inside, mask=mask) + tl.load(inbox + inside, mask=mask), mask=mask)


@triton.jit
def _send(data, theirs, place, slot, count, number, counters, peers, WAY: tl.constexpr, WORDS: tl.constexpr):
    """This program's part of message ``number``."""
    pid = tl.program_id(0)
    if WAY == LL:
        tl.store(
            theirs + slot * count + place, ll_words(data.to(tl.int64) & 0xFFFFFFFF, tl.full((), 1, tl.int32) + number)
        )
    elif WAY == SENTINEL:
        tl.store(theirs + slot * count + place, data)
    else:
        if WAY == TMA:
            theirs.store([(slot * count + pid * WORDS) // WIDTH, 0], tl.reshape(data, (WORDS // WIDTH, WIDTH)))
            _wait_for_bulk_stores()
        else:
            tl.store(theirs + slot * count + place, data)
        heap.signal(counters + pid, 1 - peers.rank, peers)


@triton.jit
def _receive(inbox, place, slot, count, number, counters, peers, WAY: tl.constexpr):
    """This program's part of the peer's message ``number``."""
    here = inbox + slot * count + place
    if WAY == LL:
        words = ll_wait(here, tl.full((), 1, tl.int32) + number, place >= 0, peers)
        data = words.to(tl.int32)
    elif WAY == SENTINEL:
        data = tl.load(here, volatile=True)
        spins = 0
        while (tl.max((data == NOT_SENT).to(tl.int32), 0) > 0) & (spins < peers.spins):
            spins += 1
            data = tl.load(here, volatile=True)
        if spins >= peers.spins:
            tl.atomic_xchg(peers.status, 1)
        # The slot of the message before is free: the peer's next one but one goes there, and comes after our next one.
        tl.store(inbox + ((slot + 2) % 3) * count + place, tl.full(data.shape, NOT_SENT, tl.int32))
        tl.debug_barrier()
    else:
        heap.wait(counters + tl.program_id(0), number + 1, peers)
        data = tl.load(here, volatile=True)
    return data


@triton.jit(do_not_specialize=["rank", "turn", "messages", "spin_limit"])
def message_kernel(
    mine, inbox, theirs, counters, sums, status, rank, heap_bases, turn, messages, spin_limit,
    WAY: tl.constexpr, SLOTS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Exchange messages with the peer, WORDS of each by every program. ``turn`` 0: both send, then both read; 1: we
    send first, and again once we have an answer; 2: we answer. ``sums``, int64, gets each program's sum of all it read.
    """
    peers = heap.Peers(rank, heap_bases, status, spin_limit)
    pid = tl.program_id(0)
    count = tl.num_programs(0) * WORDS
    place = pid * WORDS + tl.arange(0, WORDS)
    data = tl.load(mine + place)
    total = tl.zeros((WORDS,), dtype=tl.int64)
    for number in range(messages):
        slot = number % SLOTS
        if turn != 2:
            _send(data, theirs, place, slot, count, number, counters, peers, WAY, WORDS)
        got = _receive(inbox, place, slot, count, number, counters, peers, WAY)
        total += got.to(tl.int64)
        if turn == 2:
            _send(data, theirs, place, slot, count, number, counters, peers, WAY, WORDS)
    tl.store(sums + pid, tl.sum(total, axis=0))
