"""Finished tiles on their way between ranks: stored whole into a peer's inbox, signalled, summed where they arrive.

An inbox is a row of tiles, each BLOCK_M x BLOCK_N elements without gaps, whatever the matrix's edge: stores and loads
need no mask, and 16 bytes a thread are contiguous.
Sums over ranks are taken in fp32 and in a fixed order, of parts that each rank has rounded once to the inbox's type,
our own too: the result is the same every time.

An inbox of fp8 has ``scales``, fp32 [tiles, BLOCK_M]: each row of a tile is multiplied by its own. They are sent with
the tile, before its signal. A part that is not sent is then not rounded either.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.primitives.scales import quantised, received


@triton.jit
def inside_tile(BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Offsets of a tile's elements in an inbox, int32 [BLOCK_M, BLOCK_N]."""
    return tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]


@triton.jit
def send_tile(value, inbox, scales, index, peer, peers):
    """Store a tile, rounded to the inbox's type, as tile ``index`` of ``peer``'s inbox. The caller signals."""
    if scales is not None:
        value, of_rows = quantised(value, inbox.dtype.element_ty, True)
        places = scales + tl.cast(index, tl.int64) * value.shape[0] + tl.arange(0, value.shape[0])
        heap.store(places, of_rows, peers.rank, peer, peers.bases)
    pointers = inbox + tl.cast(index, tl.int64) * value.numel + inside_tile(value.shape[0], value.shape[1])
    heap.store(pointers, value.to(inbox.dtype.element_ty), peers.rank, peer, peers.bases, hint=(1, 16))


@triton.jit
def read_tile(inbox, scales, index, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Tile ``index`` of our own inbox, fp32. The caller has waited for it."""
    tile = tl.load(inbox + tl.cast(index, tl.int64) * (BLOCK_M * BLOCK_N) + inside_tile(BLOCK_M, BLOCK_N))
    if scales is not None:
        places = scales + tl.cast(index, tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
        tile = received(tile, tl.load(places))
    return tile.to(tl.float32)


@triton.jit
def add_tiles(
    acc, inbox, scales, index, apart, counters, counters_apart, target, peers, WORLD: tl.constexpr, PULL: tl.constexpr,
    BY_RANK: tl.constexpr = False,
):  # fmt: skip
    """Our own part of a tile (fp32, rounded to the inbox's type unless that has ``scales``) plus every peer's: fp32
    [BLOCK_M, BLOCK_N].

    For a tile that one rank alone sums: our own part comes first, then rank - 1, rank - 2, …, in the order in which
    ranks that send to rank + 1 first arrive. BY_RANK instead rank 0's comes first, whoever sums, and our own is in the
    inbox, too, where this program has stored it. Nothing but the sum need stay in registers. The part of rank r is tile
    ``index`` + r * ``apart`` of the inbox, there once ``counters[r * counters_apart]`` is at ``target``. PULL: the
    parts lie in the inboxes of the peers that made them, each as tile ``index``.
    """
    if BY_RANK:
        acc = tl.zeros(acc.shape, dtype=tl.float32)
    elif scales is None:
        acc = acc.to(inbox.dtype.element_ty).to(tl.float32)
    for turn in range(0 if BY_RANK else 1, WORLD):
        source = turn if BY_RANK else (peers.rank + WORLD - turn) % WORLD
        awaited = source
        if BY_RANK:  # nobody signals our own part: a peer's, which is needed anyway
            awaited = tl.where(source == peers.rank, (peers.rank + 1) % WORLD, source)
        late = heap.wait(counters + awaited * counters_apart, target, peers)
        holder = source if PULL else peers.rank
        place = tl.cast(index + (0 if PULL else source * apart) + late, tl.int64)
        pointers = inbox + place * acc.numel + inside_tile(acc.shape[0], acc.shape[1])
        part = heap.load(pointers, peers.rank, holder, peers.bases, hint=(1, 16))
        if scales is not None:
            places = scales + place * acc.shape[0] + tl.arange(0, acc.shape[0])
            part = received(part, heap.load(places, peers.rank, holder, peers.bases))
        acc += part.to(tl.float32)
    return acc
