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

from collections import namedtuple

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.primitives.ll import ll_flag, ll_wait, packed, per_word

SCALE_STEP = tl.constexpr(32)
"""Scales of a token that a program moves at once."""

Tokens = namedtuple("Tokens", "x ids gates T H K local scales per_row", defaults=(None, 1))
"""This rank's tokens x [T, H], of K ids each, for ranks of ``local`` experts; scales are fp32 [T, per_row]."""

Inbox = namedtuple("Inbox", "data arrivals done scales", defaults=(None,))
"""Where tokens arrive, and their scales. ``done``, int32 [WORLD]: programs of each rank that have read all that they
will.
"""


@triton.jit
def owners(ids, token, T, K, local, WORLD: tl.constexpr, TOKENS: tl.constexpr, CHOICES: tl.constexpr):
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
def push_tokens(tokens, inbox, epoch, part, parts, peers, FORM: tl.constexpr):
    """Store our tokens into the inboxes of the peers that have their experts. It waits for nothing. ``part`` of
    ``parts`` are the communicating programs.
    """
    T, H = tokens.T, tokens.H
    slot = (epoch & 1).to(tl.int32)
    blocks = tl.cdiv(T, FORM.TOKENS)
    PER_WORD: tl.constexpr = per_word(tokens.x.dtype.element_ty, FORM.LL)
    for unit in range(part, blocks * FORM.SPLIT, parts):
        block = unit // FORM.SPLIT
        owner = owners(
            tokens.ids, block * FORM.TOKENS, T, tokens.K, tokens.local, FORM.WORLD, FORM.TOKENS, FORM.CHOICES
        )
        token = block * FORM.TOKENS + tl.arange(0, FORM.TOKENS)
        row = ((slot * FORM.WORLD + peers.rank) * T + token).to(tl.int64)
        for column in range(unit % FORM.SPLIT * FORM.COLUMNS, H, FORM.SPLIT * FORM.COLUMNS):
            columns = column + tl.arange(0, FORM.COLUMNS)
            inside = (token < T)[:, None] & (columns < H)[None, :]
            value = tl.load(tokens.x + token.to(tl.int64)[:, None] * H + columns[None, :], mask=inside)
            value = packed(value, epoch, FORM.LL)
            words = column // PER_WORD + tl.arange(0, FORM.COLUMNS // PER_WORD)
            exists = (token < T)[:, None] & (words < H // PER_WORD)[None, :]
            place = inbox.data + row[:, None] * (H // PER_WORD) + words[None, :]
            for onwards in tl.static_range(1, FORM.WORLD):
                peer = (peers.rank + onwards) % FORM.WORLD
                wanted = exists & goes_to(owner, peer)[:, None]
                heap.store(place, value, peers.rank, peer, peers.bases, mask=wanted, hint=(1, 16))
        if tokens.scales is not None:
            if unit % FORM.SPLIT == 0:
                for first in range(0, tokens.per_row, SCALE_STEP):
                    number = first + tl.arange(0, SCALE_STEP)[None, :]
                    inside = (token < T)[:, None] & (number < tokens.per_row)
                    value = tl.load(tokens.scales + token[:, None] * tokens.per_row + number, mask=inside, other=0.0)
                    place = inbox.scales + row[:, None] * tokens.per_row + number
                    for onwards in tl.static_range(1, FORM.WORLD):
                        peer = (peers.rank + onwards) % FORM.WORLD
                        wanted = inside & goes_to(owner, peer)[:, None]
                        heap.store(place, value, peers.rank, peer, peers.bases, mask=wanted)
        if not FORM.LL:
            counter = inbox.arrivals + (slot * FORM.WORLD + peers.rank) * blocks + block
            heap.signal_each(counter, peers, FORM.WORLD, 0)


@triton.jit
def fetch_tokens(tokens, routing, inbox, epoch, part, parts, peers, FORM: tl.constexpr):
    """Load every peer's tokens of our experts into our own inbox, and signal ourselves. A rank that has sent its
    routing has its tokens in place.
    """
    T, H = tokens.T, tokens.H
    slot = (epoch & 1).to(tl.int32)
    blocks = tl.cdiv(T, FORM.TOKENS)
    target = ((epoch >> 1) + 1) * routing.parts
    PEERS: tl.constexpr = FORM.WORLD - 1 if FORM.WORLD > 1 else 1
    for unit in range(part, blocks * FORM.SPLIT * (FORM.WORLD - 1), parts):
        source = (peers.rank + PEERS - unit % PEERS) % FORM.WORLD
        block = unit // PEERS // FORM.SPLIT
        late = heap.wait(routing.arrivals + slot * FORM.WORLD + source, target, peers)
        ids = routing.inbox + (slot * FORM.WORLD + source) * 2 * T * tokens.K
        owner = owners(
            ids + late, block * FORM.TOKENS, T, tokens.K, tokens.local, FORM.WORLD, FORM.TOKENS, FORM.CHOICES
        )
        wanted = goes_to(owner, peers.rank)
        token = block * FORM.TOKENS + tl.arange(0, FORM.TOKENS)
        row = ((slot * FORM.WORLD + source) * T + token).to(tl.int64)
        for column in range(unit // PEERS % FORM.SPLIT * FORM.COLUMNS, H, FORM.SPLIT * FORM.COLUMNS):
            columns = column + tl.arange(0, FORM.COLUMNS)
            inside = wanted[:, None] & (columns < H)[None, :]
            here = tokens.x + token.to(tl.int64)[:, None] * H + columns[None, :]
            value = heap.load(here, peers.rank, source, peers.bases, mask=inside, hint=(1, 16))
            tl.store(inbox.data + row[:, None] * H + columns[None, :], value, mask=inside)
        if tokens.scales is not None:
            if unit // PEERS % FORM.SPLIT == 0:
                for first in range(0, tokens.per_row, SCALE_STEP):
                    number = first + tl.arange(0, SCALE_STEP)[None, :]
                    inside = wanted[:, None] & (number < tokens.per_row)
                    here = tokens.scales + token[:, None] * tokens.per_row + number
                    value = heap.load(here, peers.rank, source, peers.bases, mask=inside)
                    tl.store(inbox.scales + row[:, None] * tokens.per_row + number, value, mask=inside)
        heap.signal(inbox.arrivals + (slot * FORM.WORLD + source) * blocks + block, peers.rank, peers)
    heap.signal_each(inbox.done + peers.rank, peers, FORM.WORLD, 0)


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
def wait_for_tokens(arrivals, token, wanted, T, signals, epoch, peers, WORLD: tl.constexpr, TOKENS: tl.constexpr):
    """Wait for the blocks of those tokens (numbers s * T + t, any shape) that are ``wanted``, signalled so many times.

    Returns an int32 that is zero unless the wait timed out, for the caller to add to what its loads depend on.
    """
    slot = (epoch & 1).to(tl.int32)
    blocks = tl.cdiv(T, TOKENS)
    counters = arrivals + (slot * WORLD + token // T) * blocks + token % T // TOKENS
    return heap.wait_each(counters, wanted, ((epoch >> 1) + 1) * signals, peers)


@triton.jit
def read_tokens(
    inbox, row, wanted, column, H, epoch, peers, TYPE: tl.constexpr, LL: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """COLUMNS elements from ``column`` on of rows of the inbox, int64 [rows]; what is not ``wanted`` or beyond H is
    zero: TYPE [rows, COLUMNS]. By LL words it waits for them.
    """
    if LL:
        PER_WORD: tl.constexpr = per_word(TYPE)
        words = column // PER_WORD + tl.arange(0, COLUMNS // PER_WORD)
        inside = wanted[:, None] & (words < H // PER_WORD)[None, :]
        place = inbox + row[:, None] * (H // PER_WORD) + words[None, :]
        found = ll_wait(place, ll_flag(epoch), inside, peers)
        if TYPE.primitive_bitwidth == 16:
            low = (found & 0xFFFF).to(tl.uint16).to(TYPE, bitcast=True)
            high = ((found >> 16) & 0xFFFF).to(tl.uint16).to(TYPE, bitcast=True)
            value = tl.reshape(tl.join(low, high), (row.shape[0], COLUMNS))
        else:
            value = (found & 0xFFFFFFFF).to(tl.uint32).to(TYPE, bitcast=True)
    else:
        columns = column + tl.arange(0, COLUMNS)
        inside = wanted[:, None] & (columns < H)[None, :]
        value = tl.load(inbox + row[:, None] * H + columns[None, :], mask=inside, other=0.0)
    return value
