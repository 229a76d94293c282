"""Finished tiles on their way between ranks: stored whole into a peer's inbox, signalled, summed where they arrive.

An inbox is a row of tiles, each BLOCK_M x BLOCK_N elements without gaps, whatever the matrix's edge: stores and loads
need no mask, and 16 bytes a thread are contiguous. Where few of a tile's rows exist, ``rows`` leaves the others out.
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
def send_tile(
    value, inbox, index, peer, rank, heap_bases, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, rows=1 << 30,
    scales=None, of_rows=None,
):  # fmt: skip
    """Store a tile, rounded to the inbox's type, as tile ``index`` of ``peer``'s inbox. The caller signals.

    ``of_rows`` are the scales of a tile that is ``quantised`` already; otherwise it is now, where ``scales`` are given.
    """
    exists = (tl.arange(0, BLOCK_M) < rows)[:, None]
    if scales is not None:
        if of_rows is None:
            value, of_rows = quantised(value, inbox.dtype.element_ty, True)
        places = scales + tl.cast(index, tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
        heap.store(places, of_rows, rank, peer, heap_bases, mask=tl.arange(0, BLOCK_M) < rows)
    pointers = inbox + tl.cast(index, tl.int64) * (BLOCK_M * BLOCK_N) + inside_tile(BLOCK_M, BLOCK_N)
    heap.store(pointers, value.to(inbox.dtype.element_ty), rank, peer, heap_bases, mask=exists, hint=(1, 16))


@triton.jit
def read_tile(inbox, index, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, rows=1 << 30, scales=None):
    """Tile ``index`` of our own inbox, in its type, with ``scales`` in fp32, zero where there are no rows. The caller
    has waited for it.
    """
    exists = (tl.arange(0, BLOCK_M) < rows)[:, None]
    pointers = inbox + tl.cast(index, tl.int64) * (BLOCK_M * BLOCK_N) + inside_tile(BLOCK_M, BLOCK_N)
    tile = tl.load(pointers, mask=exists, other=0.0)
    if scales is not None:
        places = scales + tl.cast(index, tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
        tile = received(tile, tl.load(places, mask=tl.arange(0, BLOCK_M) < rows, other=0.0))
    return tile


@triton.jit
def sum_parts(
    inbox, index, apart, PARTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, rows=1 << 30, scales=None
):  # fmt: skip
    """The sum of PARTS parts of a tile, all of them there already: fp32 [BLOCK_M, BLOCK_N]. All loads fly at once.

    Part number p is tile ``index`` + p * ``apart`` of the inbox.
    """
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for part in tl.static_range(PARTS):
        acc += read_tile(inbox, index + part * apart, BLOCK_M, BLOCK_N, rows, scales).to(tl.float32)
    return acc


@triton.jit
def add_tiles(
    acc, inbox, index, apart, arrivals, counter, counters_apart, target, rank, heap_bases, status, spin_limit,
    WORLD: tl.constexpr, PULL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, scales=None,
):  # fmt: skip
    """Our own part of a tile (fp32, rounded to the inbox's type unless that has ``scales``) plus every peer's: fp32
    [BLOCK_M, BLOCK_N].

    For a tile that one rank alone sums: our own part comes first, then rank - 1, rank - 2, …, in the order in which
    ranks that send to rank + 1 first arrive. Nothing but the sum need stay in registers. The part of rank r is tile
    ``index`` + r * ``apart`` of the inbox, there once ``arrivals[counter + r * counters_apart]`` is at ``target``.
    PULL: the parts lie in the inboxes of the peers that made them, each as tile ``index``.
    """
    if scales is None:
        acc = acc.to(inbox.dtype.element_ty).to(tl.float32)
    for back in range(1, WORLD):
        source = (rank + WORLD - back) % WORLD
        late = heap.wait(arrivals + counter + source * counters_apart, target, status, spin_limit)
        holder = source if PULL else rank
        place = tl.cast(index + (0 if PULL else source * apart) + late, tl.int64)
        pointers = inbox + place * (BLOCK_M * BLOCK_N) + inside_tile(BLOCK_M, BLOCK_N)
        part = heap.load(pointers, rank, holder, heap_bases, hint=(1, 16))
        if scales is not None:
            places = scales + place * BLOCK_M + tl.arange(0, BLOCK_M)
            part = received(part, heap.load(places, rank, holder, heap_bases))
        acc += part.to(tl.float32)
    return acc
