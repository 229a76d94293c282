"""Rows of experts on their way back: weighted and summed, in part where the experts are, the rest at the token's rank.

A row is a pair (source, token, place among the token's ids) of a plan, and its gate. ``push`` and ``pull`` first sum,
where they are, the rows of a token that has several experts on one rank: a token's sum then travels once. ``one_shot``
sends every row, times its gate, by itself. The token's rank adds up what there is for a token in the order of ranks or
of ids, in fp32: nothing depends on who comes first, so the bits are the same every time.

To sum a token's rows a program has to find them: ``place_rows`` notes each row at its pair, with the launch's flag, so
that nothing has to be cleared: a pair without the flag has no row here.

The inbox has two slots, used in turn. Of sums it is [2, WORLD, T, H]: by the rank that has summed, in a peer's inbox;
or, to be pulled, by the rank that wants it, in its own. Of rows it is [2, T * K, H], of LL words as many as hold them.
``arrivals`` are int32 [2, blocks, SPLIT]: parts of a block that are there.
"""

from __future__ import annotations

from collections import namedtuple

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.moe.tokens import goes_to, owners, read_tokens
from autotune.kernels.primitives.counters import wait_in_slot
from autotune.kernels.primitives.ll import ll_flag, ll_sum, ll_wait, ll_words, packed, per_word
from autotune.kernels.primitives.tiles import put_tile

Rows = namedtuple("Rows", "data offsets pairs gates places")
"""Rows [capacity, H] of this rank's experts, and what a plan says of them; ``data`` is None where they are a tile's
products. ``places``: see above, None in ``one_shot``.
"""

Sums = namedtuple("Sums", "out ids T H K local")
"""The sums of this rank's tokens: out [T, H] by ``ids`` [T, K] of the ranks' ``local`` experts each."""

Moves = namedtuple("Moves", "TYPE WORLD PULL LL ROTATE TOKENS COLUMNS SPLIT CHOICES")
"""How rows or their sums travel, by blocks of TOKENS, SPLIT programs each. ROTATE: one peer after the other; otherwise
block by block, to all of them.
"""


@triton.jit
def place_rows(pairs, offsets, local, places, epoch, part, parts, STEP: tl.constexpr):
    """Note this part's rows at their pairs: ``places`` is int64 [WORLD * T * K], the row and the flag."""
    end = tl.load(offsets + local)
    for first in range(part * STEP, end, parts * STEP):
        row = first + tl.arange(0, STEP)
        pair = tl.load(pairs + row, mask=row < end)
        tl.store(places + pair, ll_words(row.to(tl.int64), ll_flag(epoch)), mask=row < end)


@triton.jit
def rows_here(places, gates, pair, exists, K, flag, CHOICES: tl.constexpr):
    """Rows of tokens on this rank, int64, by place among a token's ids [TOKENS, CHOICES]; their gates, 0 for none; and
    which exist. ``pair``: the tokens' first pairs [TOKENS]; ``exist``: which tokens do.
    """
    choice = tl.arange(0, CHOICES)[None, :]
    place = tl.load(places + pair[:, None] + choice, mask=exists[:, None] & (choice < K), other=0)
    here = (place >> 32).to(tl.int32) == flag
    row = place & 0xFFFFFFFF
    gate = tl.load(gates + row, mask=here, other=0.0)
    return row, gate, here


@triton.jit
def summed_here(rows, row, gate, here, column, end_column, H, COLUMNS: tl.constexpr):
    """The sums of these rows times their gates, fp32 [TOKENS, COLUMNS] from ``column`` on.

    All of a token's rows are loaded at once, and the compiler fixes the order of the sum.
    """
    columns = (column + tl.arange(0, COLUMNS))[None, None, :]
    inside = here[:, :, None] & (columns < end_column)
    value = tl.load(rows + row[:, :, None] * H + columns, mask=inside, other=0.0)
    return tl.sum(gate[:, :, None] * value.to(tl.float32), axis=1)


@triton.jit
def send_sums(rows, sums, inbox, arrivals, first_column, end_column, epoch, part, parts, peers, FORM: tl.constexpr):
    """Sum this rank's rows of every token of every rank, and store the sums for that rank, ourselves last; of columns
    from ``first_column`` to ``end_column``. The caller has waited for ``places``, and for the rows.
    """
    T, H, K = sums.T, sums.H, sums.K
    slot = (epoch & 1).to(tl.int32)
    blocks = tl.cdiv(T, FORM.TOKENS)
    for unit in range(part, FORM.WORLD * blocks * FORM.SPLIT, parts):
        if FORM.ROTATE:
            turn = unit // (blocks * FORM.SPLIT)
            block = unit // FORM.SPLIT % blocks
        else:
            turn = unit // FORM.SPLIT % FORM.WORLD
            block = unit // (FORM.WORLD * FORM.SPLIT)
        peer = (peers.rank + 1 + turn) % FORM.WORLD
        token = block * FORM.TOKENS + tl.arange(0, FORM.TOKENS)
        begin = first_column + unit % FORM.SPLIT * FORM.COLUMNS
        pair = (peer * T + token) * K
        sent, gate, here = rows_here(rows.places, rows.gates, pair, token < T, K, ll_flag(epoch), FORM.CHOICES)
        found = tl.max(here.to(tl.int32), axis=1) > 0
        for column in range(begin, end_column, FORM.SPLIT * FORM.COLUMNS):
            value = summed_here(rows.data, sent, gate, here, column, end_column, H, FORM.COLUMNS)
            columns = column + tl.arange(0, FORM.COLUMNS)
            row = ((slot * FORM.WORLD + (peer if FORM.PULL else peers.rank)) * T + token).to(tl.int64)
            place = inbox + row[:, None] * H + columns[None, :]
            inside = found[:, None] & (columns < end_column)[None, :]
            holder = peers.rank if FORM.PULL else peer
            value = value.to(inbox.dtype.element_ty)
            heap.store(place, value, peers.rank, holder, peers.bases, mask=inside, hint=(1, 16))
        heap.signal(arrivals + (slot * blocks + block) * FORM.SPLIT + unit % FORM.SPLIT, peer, peers)


@triton.jit
def add_sums(sums, inbox, arrivals, first_column, end_column, epoch, part, parts, peers, FORM: tl.constexpr):
    """Wait for every rank's sums of our tokens, add them up in the order of ranks, and store them."""
    T, H = sums.T, sums.H
    slot = (epoch & 1).to(tl.int32)
    blocks = tl.cdiv(T, FORM.TOKENS)
    for unit in range(part, blocks * FORM.SPLIT, parts):
        block = unit // FORM.SPLIT
        token = block * FORM.TOKENS + tl.arange(0, FORM.TOKENS)
        owner = owners(sums.ids, block * FORM.TOKENS, T, sums.K, sums.local, FORM.WORLD, FORM.TOKENS, FORM.CHOICES)
        counter = arrivals + (slot * blocks + block) * FORM.SPLIT + unit % FORM.SPLIT
        late = wait_in_slot(counter, epoch, FORM.WORLD, peers)
        # Times COLUMNS: of a start that may be odd the compiler would load element by element.
        begin = first_column + (unit % FORM.SPLIT + late) * FORM.COLUMNS
        for column in range(begin, end_column, FORM.SPLIT * FORM.COLUMNS):
            columns = column + tl.arange(0, FORM.COLUMNS)
            acc = tl.zeros((FORM.TOKENS, FORM.COLUMNS), dtype=tl.float32)
            for source in tl.static_range(FORM.WORLD):
                inside = goes_to(owner, source)[:, None] & (columns < end_column)[None, :]
                row = ((slot * FORM.WORLD + (peers.rank if FORM.PULL else source)) * T + token).to(tl.int64)
                place = inbox + row[:, None] * H + columns[None, :]
                if FORM.PULL:
                    value = heap.load(place, peers.rank, source, peers.bases, mask=inside, hint=(1, 16))
                    value = tl.where(inside, value, 0.0)
                else:
                    value = tl.load(place, mask=inside, other=0.0)
                acc += value.to(tl.float32)
            exists = (token < T)[:, None] & (columns < end_column)[None, :]
            to = sums.out + token.to(tl.int64)[:, None] * H + columns[None, :]
            tl.store(to, acc.to(sums.out.dtype.element_ty), mask=exists)


@triton.jit
def send_rows(rows, sums, inbox, epoch, part, parts, peers, FORM: tl.constexpr):
    """Send every row, times its gate, to its token's rank. Nothing signals."""
    H, all_pairs = sums.H, sums.T * sums.K
    slot = (epoch & 1).to(tl.int32)
    PER_WORD: tl.constexpr = per_word(FORM.TYPE, FORM.LL)
    end = tl.load(rows.offsets + sums.local)
    for unit in range(part, end * FORM.SPLIT, parts):
        row = unit // FORM.SPLIT
        pair, gate = tl.load(rows.pairs + row), tl.load(rows.gates + row)
        place = (slot * all_pairs + pair % all_pairs).to(tl.int64) * (H // PER_WORD)
        for column in range(unit % FORM.SPLIT * FORM.COLUMNS, H, FORM.SPLIT * FORM.COLUMNS):
            columns = column + tl.arange(0, FORM.COLUMNS)[None, :]
            value = tl.load(rows.data + row.to(tl.int64) * H + columns, mask=columns < H, other=0.0)
            value = packed((gate * value.to(tl.float32)).to(FORM.TYPE), epoch, FORM.LL)
            words = column // PER_WORD + tl.arange(0, FORM.COLUMNS // PER_WORD)[None, :]
            inside, peer = words < H // PER_WORD, pair // all_pairs
            heap.store(inbox + place + words, value, peers.rank, peer, peers.bases, mask=inside, hint=(1, 16))


@triton.jit
def add_rows(sums, inbox, epoch, part, parts, peers, FORM: tl.constexpr):
    """Add up the rows of our tokens in the order of their ids, and store the sums. The caller has waited for the rows,
    but for LL words: all of a token's are polled at once, and the compiler fixes the order.
    """
    T, H, K = sums.T, sums.H, sums.K
    experts = sums.local * FORM.WORLD
    slot = (epoch & 1).to(tl.int32)
    for unit in range(part, tl.cdiv(T, FORM.TOKENS) * FORM.SPLIT, parts):
        token = unit // FORM.SPLIT * FORM.TOKENS + tl.arange(0, FORM.TOKENS)
        for column in range(unit % FORM.SPLIT * FORM.COLUMNS, H, FORM.SPLIT * FORM.COLUMNS):
            if FORM.LL:
                PER_WORD: tl.constexpr = per_word(FORM.TYPE)
                choice = tl.arange(0, FORM.CHOICES)[:, None]
                exists = (token < T)[None, :] & (choice < K)
                chosen = tl.load(sums.ids + token[None, :] * K + choice, mask=exists, other=-1)
                chosen = (chosen >= 0) & (chosen < experts)
                words = column // PER_WORD + tl.arange(0, FORM.COLUMNS // PER_WORD)
                row = ((slot * T + token[None, :]) * K + choice).to(tl.int64)
                place = inbox + row[:, :, None] * (H // PER_WORD) + words[None, None, :]
                wanted = chosen[:, :, None] & (words < H // PER_WORD)[None, None, :]
                acc = ll_sum(ll_wait(place, ll_flag(epoch), wanted, peers), FORM.TYPE)
            else:
                acc = tl.zeros((FORM.TOKENS, FORM.COLUMNS), dtype=tl.float32)
                for choice in range(K):
                    chosen = tl.load(sums.ids + token * K + choice, mask=token < T, other=-1)
                    chosen = (chosen >= 0) & (chosen < experts)
                    row = ((slot * T + token) * K + choice).to(tl.int64)
                    value = read_tokens(inbox, row, chosen, column, H, epoch, peers, FORM.TYPE, False, FORM.COLUMNS)
                    acc += value.to(tl.float32)
            put_tile(acc, sums.out, unit // FORM.SPLIT * FORM.TOKENS, column, T, H)


@triton.jit
def send_tile_rows(acc, rows, sums, inbox, row, end, column, epoch, peers, FORM: tl.constexpr):
    """Send a tile of products, fp32 [BLOCK_M, BLOCK_N], from row ``row`` to ``end`` and from ``column`` on: each row
    times its gate to its token's rank. Nothing signals.
    """
    H, all_pairs = sums.H, sums.T * sums.K
    slot = (epoch & 1).to(tl.int32)
    PER_WORD: tl.constexpr = per_word(FORM.TYPE, FORM.LL)
    places = row + tl.arange(0, acc.shape[0])
    pair = tl.load(rows.pairs + places, mask=places < end, other=0)
    gate = tl.load(rows.gates + places, mask=places < end, other=0.0)
    value = packed((acc * gate[:, None]).to(FORM.TYPE), epoch, FORM.LL)
    words = column // PER_WORD + tl.arange(0, acc.shape[1] // PER_WORD)
    place = (slot * all_pairs + pair % all_pairs).to(tl.int64)
    to = inbox + place[:, None] * (H // PER_WORD) + words[None, :]
    inside = (places < end)[:, None] & (words < H // PER_WORD)[None, :]
    heap.store(to, value, peers.rank, (pair // all_pairs)[:, None], peers.bases, mask=inside, hint=(1, 16))
