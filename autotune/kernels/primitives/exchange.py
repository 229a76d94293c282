"""Finished tiles on their way between ranks: stored whole into a peer's inbox, signalled, summed where they arrive.

An inbox is a row of tiles, each BLOCK_M x BLOCK_N elements without gaps, whatever the matrix's edge: stores and loads
need no mask, and 16 bytes a thread are contiguous. The sum over ranks is taken in fp32 and in the order of the ranks,
of parts that each rank has rounded once to the inbox's type, our own too: every rank that sums the same tile gets the
same bits, every time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap


@triton.jit
def inside_tile(BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Offsets of a tile's elements in an inbox, int32 [BLOCK_M, BLOCK_N]."""
    return tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]


@triton.jit
def send_tile(value, inbox, index, peer, rank, heap_bases, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Store a tile, rounded to the inbox's type, as tile ``index`` of ``peer``'s inbox. The caller signals."""
    pointers = inbox + tl.cast(index, tl.int64) * (BLOCK_M * BLOCK_N) + inside_tile(BLOCK_M, BLOCK_N)
    heap.store(pointers, value.to(inbox.dtype.element_ty), rank, peer, heap_bases, hint=(1, 16))


@triton.jit
def read_tile(inbox, index, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Tile ``index`` of our own inbox, in its type. The caller has waited for it."""
    return tl.load(inbox + tl.cast(index, tl.int64) * (BLOCK_M * BLOCK_N) + inside_tile(BLOCK_M, BLOCK_N))


@triton.jit
def sum_tiles(
    own, inbox, index, apart, arrivals, counter, counters_apart, target, rank, status, spin_limit,
    WORLD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Our own part of a tile (fp32) plus every peer's, once all are there: fp32 [BLOCK_M, BLOCK_N].

    The part of rank r is tile ``index`` + r * ``apart`` of the inbox, and there once the counter
    ``arrivals[counter + r * counters_apart]`` has reached ``target``.
    """
    sources = tl.arange(0, triton.next_power_of_2(WORLD))
    counters = arrivals + counter + sources * counters_apart
    late = heap.wait_each(counters, (sources < WORLD) & (sources != rank), target, status, spin_limit)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for source in tl.static_range(WORLD):
        if source == rank:
            acc += own.to(inbox.dtype.element_ty).to(tl.float32)
        else:
            acc += read_tile(inbox, index + source * apart + late, BLOCK_M, BLOCK_N).to(tl.float32)
    return acc


@triton.jit
def add_tiles(
    acc, inbox, index, apart, arrivals, counter, counters_apart, target, rank, heap_bases, status, spin_limit,
    WORLD: tl.constexpr, PULL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Our own part of a tile (fp32, rounded to the inbox's type) plus every peer's: fp32 [BLOCK_M, BLOCK_N].

    Like ``sum_tiles``, where one rank alone sums the tile: our own part comes first, then rank - 1, rank - 2, …, in the
    order in which ranks that send to rank + 1 first arrive. Nothing but the sum need stay in registers. PULL: the parts
    lie in the inboxes of the peers that made them, each as tile ``index``; otherwise all in ours, as in ``sum_tiles``.
    """
    acc = acc.to(inbox.dtype.element_ty).to(tl.float32)
    for back in range(1, WORLD):
        source = (rank + WORLD - back) % WORLD
        late = heap.wait(arrivals + counter + source * counters_apart, target, status, spin_limit)
        holder = source if PULL else rank
        place = tl.cast(index + (0 if PULL else source * apart) + late, tl.int64) * (BLOCK_M * BLOCK_N)
        pointers = inbox + place + inside_tile(BLOCK_M, BLOCK_N)
        acc += heap.load(pointers, rank, holder, heap_bases, hint=(1, 16)).to(tl.float32)
    return acc
