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

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.moe.tokens import goes_to, owners, read_tokens
from autotune.kernels.primitives.ll import ll_data, ll_flag, ll_sum, ll_wait, ll_words


@triton.jit
def place_rows(pairs, offsets, local, places, epoch, part, parts, STEP: tl.constexpr):
    """Note this part's rows at their pairs: ``places`` is int64 [WORLD * T * K], the row and the flag."""
    end = tl.load(offsets + local)
    for first in range(part * STEP, end, parts * STEP):
        row = first + tl.arange(0, STEP)
        pair = tl.load(pairs + row, mask=row < end)
        tl.store(places + pair, ll_words(row.to(tl.int64), ll_flag(epoch)), mask=row < end)


@triton.jit
def rows_here(
    places, gates, pair, exists, K, flag, CHOICES: tl.constexpr
):  # fmt: skip
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
def send_sums(
    rows, gates, places, inbox, arrivals, T, H, K, first_column, end_column, epoch, part, parts, rank, heap_bases,
    WORLD: tl.constexpr, PULL: tl.constexpr, ROTATE: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr,
    SPLIT: tl.constexpr, CHOICES: tl.constexpr,
):  # fmt: skip
    """Sum this rank's rows of every token of every rank, and store the sums for that rank, ourselves last; of columns
    from ``first_column`` to ``end_column``. The caller has waited for ``places``, and for the rows.

    ROTATE: one peer after the other; otherwise block by block, to all of them.
    """
    slot = (epoch & 1).to(tl.int32)
    blocks = tl.cdiv(T, TOKENS)
    for unit in range(part, WORLD * blocks * SPLIT, parts):
        if ROTATE:
            turn = unit // (blocks * SPLIT)
            block = unit // SPLIT % blocks
        else:
            turn = unit // SPLIT % WORLD
            block = unit // (WORLD * SPLIT)
        peer = (rank + 1 + turn) % WORLD
        token = block * TOKENS + tl.arange(0, TOKENS)
        begin = first_column + unit % SPLIT * COLUMNS
        sent, gate, here = rows_here(places, gates, (peer * T + token) * K, token < T, K, ll_flag(epoch), CHOICES)
        found = tl.max(here.to(tl.int32), axis=1) > 0
        for column in range(begin, end_column, SPLIT * COLUMNS):
            value = summed_here(rows, sent, gate, here, column, end_column, H, COLUMNS)
            columns = column + tl.arange(0, COLUMNS)
            row = ((slot * WORLD + (peer if PULL else rank)) * T + token).to(tl.int64)
            place = inbox + row[:, None] * H + columns[None, :]
            inside = found[:, None] & (columns < end_column)[None, :]
            holder = rank if PULL else peer
            heap.store(place, value.to(inbox.dtype.element_ty), rank, holder, heap_bases, mask=inside, hint=(1, 16))
        heap.signal(arrivals + (slot * blocks + block) * SPLIT + unit % SPLIT, peer, rank, heap_bases)


@triton.jit
def add_sums(
    out, ids, inbox, arrivals, T, H, K, local, first_column, end_column, epoch, part, parts, rank, heap_bases, status,
    spin_limit, WORLD: tl.constexpr, PULL: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr,
    SPLIT: tl.constexpr, CHOICES: tl.constexpr,
):  # fmt: skip
    """Wait for every rank's sums of our tokens, add them up in the order of ranks, and store out [T, H]."""
    slot = (epoch & 1).to(tl.int32)
    blocks = tl.cdiv(T, TOKENS)
    for unit in range(part, blocks * SPLIT, parts):
        block = unit // SPLIT
        token = block * TOKENS + tl.arange(0, TOKENS)
        owner = owners(ids, block * TOKENS, T, K, local, WORLD, TOKENS, CHOICES)
        target = (((epoch >> 1) + 1) * WORLD).to(tl.int32)
        late = heap.wait(arrivals + (slot * blocks + block) * SPLIT + unit % SPLIT, target, status, spin_limit)
        # Times COLUMNS: of a start that may be odd the compiler would load element by element.
        for column in range(first_column + (unit % SPLIT + late) * COLUMNS, end_column, SPLIT * COLUMNS):
            columns = column + tl.arange(0, COLUMNS)
            acc = tl.zeros((TOKENS, COLUMNS), dtype=tl.float32)
            for source in tl.static_range(WORLD):
                inside = goes_to(owner, source)[:, None] & (columns < end_column)[None, :]
                row = ((slot * WORLD + (rank if PULL else source)) * T + token).to(tl.int64)
                place = inbox + row[:, None] * H + columns[None, :]
                if PULL:
                    value = heap.load(place, rank, source, heap_bases, mask=inside, hint=(1, 16))
                    value = tl.where(inside, value, 0.0)
                else:
                    value = tl.load(place, mask=inside, other=0.0)
                acc += value.to(tl.float32)
            exists = (token < T)[:, None] & (columns < end_column)[None, :]
            to = out + token.to(tl.int64)[:, None] * H + columns[None, :]
            tl.store(to, acc.to(out.dtype.element_ty), mask=exists)


@triton.jit
def send_row(
    value, pair, inbox, T, H, K, column, end_column, epoch, rank, heap_bases, LL: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Store COLUMNS elements [1, COLUMNS] of a pair's row, rounded already, for the pair's rank. Nothing signals."""
    slot = (epoch & 1).to(tl.int32)
    PER_WORD: tl.constexpr = 32 // value.dtype.primitive_bitwidth if LL else 1
    row = (slot * T * K + pair % (T * K)).to(tl.int64)
    words = column // PER_WORD + tl.arange(0, COLUMNS // PER_WORD)[None, :]
    if LL:
        value = ll_words(ll_data(value, 1, COLUMNS), ll_flag(epoch))
    place = inbox + row * (H // PER_WORD) + words
    heap.store(
        place, value, rank, pair // (T * K), heap_bases, mask=words < end_column // PER_WORD, hint=(1, 16)
    )  # fmt: skip


@triton.jit
def send_rows(
    rows, gates, pairs, offsets, inbox, T, H, K, local, epoch, part, parts, rank, heap_bases, TYPE: tl.constexpr,
    LL: tl.constexpr, COLUMNS: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Send every row, times its gate, to its token's rank."""
    end = tl.load(offsets + local)
    for unit in range(part, end * SPLIT, parts):
        row = unit // SPLIT
        pair, gate = tl.load(pairs + row), tl.load(gates + row)
        for column in range(unit % SPLIT * COLUMNS, H, SPLIT * COLUMNS):
            columns = column + tl.arange(0, COLUMNS)[None, :]
            value = tl.load(rows + row.to(tl.int64) * H + columns, mask=columns < H, other=0.0)
            value = (gate * value.to(tl.float32)).to(TYPE)
            send_row(value, pair, inbox, T, H, K, column, H, epoch, rank, heap_bases, LL, COLUMNS)


@triton.jit
def add_rows(
    out, ids, inbox, T, H, K, experts, epoch, part, parts, status, spin_limit, TYPE: tl.constexpr, LL: tl.constexpr,
    TOKENS: tl.constexpr, COLUMNS: tl.constexpr, SPLIT: tl.constexpr, CHOICES: tl.constexpr,
):  # fmt: skip
    """Add up the rows of our tokens in the order of their ids, and store out [T, H]. The caller has waited for the
    rows, but for LL words: all of a token's are polled at once, and the compiler fixes the order.
    """
    slot = (epoch & 1).to(tl.int32)
    for unit in range(part, tl.cdiv(T, TOKENS) * SPLIT, parts):
        token = unit // SPLIT * TOKENS + tl.arange(0, TOKENS)
        for column in range(unit % SPLIT * COLUMNS, H, SPLIT * COLUMNS):
            if LL:
                PER_WORD: tl.constexpr = 32 // TYPE.primitive_bitwidth
                choice = tl.arange(0, CHOICES)[:, None]
                exists = (token < T)[None, :] & (choice < K)
                chosen = tl.load(ids + token[None, :] * K + choice, mask=exists, other=-1)
                chosen = (chosen >= 0) & (chosen < experts)
                words = column // PER_WORD + tl.arange(0, COLUMNS // PER_WORD)
                row = ((slot * T + token[None, :]) * K + choice).to(tl.int64)
                place = inbox + row[:, :, None] * (H // PER_WORD) + words[None, None, :]
                wanted = chosen[:, :, None] & (words < H // PER_WORD)[None, None, :]
                acc = ll_sum(ll_wait(place, ll_flag(epoch), wanted, status, spin_limit), TYPE, TOKENS, COLUMNS)
            else:
                acc = tl.zeros((TOKENS, COLUMNS), dtype=tl.float32)
                for choice in range(K):
                    chosen = tl.load(ids + token * K + choice, mask=token < T, other=-1)
                    chosen = (chosen >= 0) & (chosen < experts)
                    row = ((slot * T + token) * K + choice).to(tl.int64)
                    value = read_tokens(
                        inbox, row, chosen, column, H, epoch, status, spin_limit, TYPE, False, TOKENS, COLUMNS
                    )  # fmt: skip
                    acc += value.to(tl.float32)
            columns = column + tl.arange(0, COLUMNS)
            inside = (token < T)[:, None] & (columns < H)[None, :]
            tl.store(out + token.to(tl.int64)[:, None] * H + columns[None, :], acc.to(TYPE), mask=inside)


@triton.jit
def send_tile_rows(
    acc, gates, pairs, inbox, row, end, T, H, K, column, epoch, rank, heap_bases, TYPE: tl.constexpr, LL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Send a tile of products, fp32 [BLOCK_M, BLOCK_N], from row ``row`` to ``end`` and from ``column`` on: each row
    times its gate to its token's rank. Nothing signals.
    """
    slot = (epoch & 1).to(tl.int32)
    rows = row + tl.arange(0, BLOCK_M)
    pair = tl.load(pairs + rows, mask=rows < end, other=0)
    gate = tl.load(gates + rows, mask=rows < end, other=0.0)
    value = (acc * gate[:, None]).to(TYPE)
    PER_WORD: tl.constexpr = 32 // TYPE.primitive_bitwidth if LL else 1
    if LL:
        value = ll_words(ll_data(value, BLOCK_M, BLOCK_N), ll_flag(epoch))
    words = column // PER_WORD + tl.arange(0, BLOCK_N // PER_WORD)
    place = (slot * T * K + pair % (T * K)).to(tl.int64)
    to = inbox + place[:, None] * (H // PER_WORD) + words[None, :]
    inside = (rows < end)[:, None] & (words < H // PER_WORD)[None, :]
    heap.store(to, value, rank, (pair // (T * K))[:, None], heap_bases, mask=inside, hint=(1, 16))
