"""Tokens on their way to the ranks of their experts: each goes once to a rank, however many of its experts are there.

A token keeps its number: token t of source s is row s * T + t of the inbox, so that a sender needs no plan, and a row
of the plan says by itself where it lies. Rows of tokens that do not come stay as they were. An inbox has two slots,
used in turn (see ``plan``): [2, WORLD, T, H] elements, or as many LL words (``ll``) as hold them.

A rank's own tokens stay where they are, in its operand ``x``: nobody stores, signals or waits for them.

Tokens travel in blocks of TOKENS, each by SPLIT programs, a part of the columns each, that signal the block once each,
to every rank: ``arrivals`` is int32 [2, WORLD, blocks]. By LL words none does. A rank that gets no token of a block
gets its signal, too: counters count launches.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.primitives.ll import ll_data, ll_flag, ll_wait, ll_words

SCALE_STEP = tl.constexpr(32)
"""Scales of a token that a program moves at once."""


@triton.jit
def owners(
    ids, token, T, K, local, WORLD: tl.constexpr, TOKENS: tl.constexpr, CHOICES: tl.constexpr
):  # fmt: skip
    """The ranks of the experts of TOKENS tokens from ``token`` on, WORLD for none: int32 [TOKENS, CHOICES].

    ``ids`` is int32 [T, K]; CHOICES the power of two from K on.
    """
    tokens, places = token + tl.arange(0, TOKENS)[:, None], tl.arange(0, CHOICES)[None, :]
    chosen = tl.load(ids + tokens * K + places, mask=(tokens < T) & (places < K), other=-1)
    return tl.where(chosen >= 0, chosen // local, WORLD)


@triton.jit
def goes_to(owner, rank):
    """The tokens with an expert on ``rank``: bool [TOKENS]."""
    return tl.max((owner == rank).to(tl.int32), axis=1) > 0


@triton.jit
def push_tokens(
    x, ids, inbox, arrivals, T, H, K, local, epoch, part, parts, rank, heap_bases, WORLD: tl.constexpr,
    LL: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr, SPLIT: tl.constexpr, CHOICES: tl.constexpr,
    scales=None, scale_inbox=None, per_row=1,
):  # fmt: skip
    """Store our tokens x [T, H] into the inboxes of the peers that have their experts. It waits for nothing.
    ``part`` of ``parts`` are the communicating programs.
    """
    slot = (epoch & 1).to(tl.int32)
    blocks = tl.cdiv(T, TOKENS)
    PER_WORD: tl.constexpr = 32 // x.dtype.element_ty.primitive_bitwidth if LL else 1
    for unit in range(part, blocks * SPLIT, parts):
        block = unit // SPLIT
        token = block * TOKENS
        owner = owners(ids, token, T, K, local, WORLD, TOKENS, CHOICES)
        tokens = token + tl.arange(0, TOKENS)
        row = ((slot * WORLD + rank) * T + tokens).to(tl.int64)
        for column in range(unit % SPLIT * COLUMNS, H, SPLIT * COLUMNS):
            columns = column + tl.arange(0, COLUMNS)
            inside = (tokens < T)[:, None] & (columns < H)[None, :]
            value = tl.load(x + tokens.to(tl.int64)[:, None] * H + columns[None, :], mask=inside)
            if LL:
                value = ll_words(ll_data(value, TOKENS, COLUMNS), ll_flag(epoch))
            words = column // PER_WORD + tl.arange(0, COLUMNS // PER_WORD)
            exists = (tokens < T)[:, None] & (words < H // PER_WORD)[None, :]
            place = inbox + row[:, None] * (H // PER_WORD) + words[None, :]
            for onwards in tl.static_range(1, WORLD):
                peer = (rank + onwards) % WORLD
                heap.store(
                    place, value, rank, peer, heap_bases, mask=exists & goes_to(owner, peer)[:, None], hint=(1, 16)
                )  # fmt: skip
        if scales is not None:
            if unit % SPLIT == 0:
                for first in range(0, per_row, SCALE_STEP):
                    number = first + tl.arange(0, SCALE_STEP)[None, :]
                    inside = (tokens < T)[:, None] & (number < per_row)
                    value = tl.load(scales + tokens[:, None] * per_row + number, mask=inside, other=0.0)
                    place = scale_inbox + row[:, None] * per_row + number
                    for onwards in tl.static_range(1, WORLD):
                        peer = (rank + onwards) % WORLD
                        heap.store(
                            place, value, rank, peer, heap_bases, mask=inside & goes_to(owner, peer)[:, None]
                        )  # fmt: skip
        if not LL:
            heap.signal_each(arrivals + (slot * WORLD + rank) * blocks + block, rank, heap_bases, WORLD, 0)


@triton.jit
def fetch_tokens(
    x, routed, routings, routing_parts, inbox, arrivals, done, T, H, K, local, epoch, part, parts, rank, heap_bases,
    status, spin_limit, WORLD: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr, SPLIT: tl.constexpr,
    CHOICES: tl.constexpr, scales=None, scale_inbox=None, per_row=1,
):  # fmt: skip
    """Load every peer's tokens of our experts into our own inbox, and signal ourselves.

    ``routed`` and ``routings`` are the inbox of routing and its counters (``plan``): a rank that has sent its routing
    has its tokens x in place. ``done``, int32 [WORLD], says to every rank that this program has read all that it will.
    """
    slot = (epoch & 1).to(tl.int32)
    blocks = tl.cdiv(T, TOKENS)
    target = (((epoch >> 1) + 1) * routing_parts).to(tl.int32)
    PEERS: tl.constexpr = WORLD - 1 if WORLD > 1 else 1
    for unit in range(part, blocks * SPLIT * (WORLD - 1), parts):
        source = (rank + PEERS - unit % PEERS) % WORLD
        block = unit // PEERS // SPLIT
        late = heap.wait(routings + slot * WORLD + source, target, status, spin_limit)
        token = block * TOKENS
        ids = routed + (slot * WORLD + source) * 2 * T * K
        owner = owners(ids + late, token, T, K, local, WORLD, TOKENS, CHOICES)
        wanted = goes_to(owner, rank)
        tokens = token + tl.arange(0, TOKENS)
        row = ((slot * WORLD + source) * T + tokens).to(tl.int64)
        for column in range(unit // PEERS % SPLIT * COLUMNS, H, SPLIT * COLUMNS):
            columns = column + tl.arange(0, COLUMNS)
            inside = wanted[:, None] & (columns < H)[None, :]
            here = x + tokens.to(tl.int64)[:, None] * H + columns[None, :]
            value = heap.load(here, rank, source, heap_bases, mask=inside, hint=(1, 16))
            tl.store(inbox + row[:, None] * H + columns[None, :], value, mask=inside)
        if scales is not None:
            if unit // PEERS % SPLIT == 0:
                for first in range(0, per_row, SCALE_STEP):
                    number = first + tl.arange(0, SCALE_STEP)[None, :]
                    inside = wanted[:, None] & (number < per_row)
                    here = scales + tokens[:, None] * per_row + number
                    value = heap.load(here, rank, source, heap_bases, mask=inside)
                    tl.store(scale_inbox + row[:, None] * per_row + number, value, mask=inside)
        heap.signal(arrivals + (slot * WORLD + source) * blocks + block, rank, rank, heap_bases)
    heap.signal_each(done + rank, rank, heap_bases, WORLD, 0)


@triton.jit
def places_of(ours, x, here, inbox, there):
    """Pointers to x + here where the tokens are ``ours``, else to inbox + there, as ``ours`` in shape.

    For AMD by way of their addresses, as one of its compiler's passes fails at a choice between pointers; for NVIDIA
    not, as then nothing would be known of their alignment.
    """
    if heap.compiles_for_cuda():
        found = tl.where(ours, x + here, inbox + there)
    else:
        address = tl.where(ours, (x + here).to(tl.int64), (inbox + there).to(tl.int64))
        found = address.to(tl.pointer_type(x.dtype.element_ty), bitcast=True)
    return found


@triton.jit
def wait_for_tokens(
    arrivals, token, wanted, T, signals, epoch, status, spin_limit, WORLD: tl.constexpr, TOKENS: tl.constexpr
):
    """Wait for the blocks of those tokens (numbers s * T + t, any shape) that are ``wanted``, signalled so many times.

    Returns an int32 that is zero unless the wait timed out, for the caller to add to what its loads depend on.
    """
    slot = (epoch & 1).to(tl.int32)
    blocks = tl.cdiv(T, TOKENS)
    counters = arrivals + (slot * WORLD + token // T) * blocks + token % T // TOKENS
    target = (((epoch >> 1) + 1) * signals).to(tl.int32)
    return heap.wait_each(counters, wanted, target, status, spin_limit)


@triton.jit
def read_tokens(
    inbox, row, wanted, column, H, epoch, status, spin_limit, TYPE: tl.constexpr, LL: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """COLUMNS elements from ``column`` on of rows of the inbox, int64 [ROWS]; what is not ``wanted`` or beyond H is
    zero: TYPE [ROWS, COLUMNS]. By LL words it waits for them.
    """
    if LL:
        PER_WORD: tl.constexpr = 32 // TYPE.primitive_bitwidth
        words = column // PER_WORD + tl.arange(0, COLUMNS // PER_WORD)
        inside = wanted[:, None] & (words < H // PER_WORD)[None, :]
        place = inbox + row[:, None] * (H // PER_WORD) + words[None, :]
        found = ll_wait(place, ll_flag(epoch), inside, status, spin_limit)
        if TYPE.primitive_bitwidth == 16:
            low = (found & 0xFFFF).to(tl.uint16).to(TYPE, bitcast=True)
            high = ((found >> 16) & 0xFFFF).to(tl.uint16).to(TYPE, bitcast=True)
            value = tl.reshape(tl.join(low, high), (ROWS, COLUMNS))
        else:
            value = (found & 0xFFFFFFFF).to(tl.uint32).to(TYPE, bitcast=True)
    else:
        columns = column + tl.arange(0, COLUMNS)
        inside = wanted[:, None] & (columns < H)[None, :]
        value = tl.load(inbox + row[:, None] * H + columns[None, :], mask=inside, other=0.0)
    return value
