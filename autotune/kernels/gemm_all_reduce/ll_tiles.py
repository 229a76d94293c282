"""Tiles that carry their own flags: four bytes of data and four of flag in each word of eight.

The way to a peer is then a single store: nothing is signalled, and nothing waits for a store to be acknowledged. It
rests on one property of the hardware alone: an aligned store of eight bytes becomes visible whole, data and flag at
once. No order among words is needed, because every word is looked at for itself, again and again, until its flag is
this launch's; a volatile load goes to the L2, where peers' stores arrive. NVIDIA's GPUs have both properties (NCCL's
low-latency protocol rests on them); on AMD's an ordinary store may stay in the sender's L2.

The flag is the launch's number, counted so that it is never zero. A word of the slot holds zero at first, later the
flag of two launches ago: never the one that is waited for. That nobody overwrites a word before it has been read is the
inbox's argument, see ``device``; what it needs is weaker than an acquire: a load whose value decided that the launch
may end is over.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.primitives.exchange import inside_tile


@triton.jit
def ll_flag(epoch):
    """A launch's flag in the upper half of a word of zeros, int64."""
    return (epoch % 0xFFFFFFFF + 1) << 32


@triton.jit
def ll_send_tile(
    part, flag, inbox, index, first, rank, heap_bases, rows,
    PEERS: tl.constexpr, WORLD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Store a tile, in C's type, as tile ``index`` of the inbox (int64) of PEERS ranks from ``first`` on."""
    WIDTH: tl.constexpr = BLOCK_N // 2 if part.dtype.primitive_bitwidth == 16 else BLOCK_N
    if WIDTH < BLOCK_N:
        low, high = tl.split(tl.reshape(part.to(tl.uint16, bitcast=True), (BLOCK_M, BLOCK_N // 2, 2)))
        data = low.to(tl.int64) | (high.to(tl.int64) << 16)
    else:
        data = part.to(tl.uint32, bitcast=True).to(tl.int64)
    pointers = inbox + tl.cast(index, tl.int64) * (BLOCK_M * WIDTH) + inside_tile(BLOCK_M, WIDTH)
    exists = (tl.arange(0, BLOCK_M) < rows)[:, None]
    for turn in tl.static_range(PEERS):
        heap.store(pointers, data | flag, rank, (first + turn) % WORLD, heap_bases, mask=exists, hint=(1, 16))


@triton.jit
def ll_sum_tiles(
    inbox, index, apart, flag, status, spin_limit, rows, TYPE: tl.constexpr,
    SOURCES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Wait for all parts of a tile and add them up: fp32 [BLOCK_M, BLOCK_N], in an order fixed by the compiler.

    Part number s is tile ``index`` + s * ``apart`` of our inbox. All parts are polled at once; the wait is bounded
    like ``heap.wait``. TYPE is C's.
    """
    WIDTH: tl.constexpr = BLOCK_N // 2 if TYPE.primitive_bitwidth == 16 else BLOCK_N
    sources = tl.arange(0, triton.next_power_of_2(SOURCES))[:, None, None]
    exists = (sources < SOURCES) & (tl.arange(0, BLOCK_M) < rows)[None, :, None]
    tiles = (index + sources * apart).to(tl.int64)
    pointers = inbox + tiles * (BLOCK_M * WIDTH) + inside_tile(BLOCK_M, WIDTH)[None, :, :]
    words = tl.load(pointers, mask=exists, other=flag, volatile=True)
    missing = tl.sum((((words ^ flag) >> 32) != 0).to(tl.int32))
    spins = 0
    while (missing > 0) & (spins < spin_limit):
        spins += 1
        if spins % 256 == 0:
            if tl.load(status, volatile=True) != 0:
                spins = spin_limit
        words = tl.load(pointers, mask=exists, other=flag, volatile=True)
        missing = tl.sum((((words ^ flag) >> 32) != 0).to(tl.int32))
    if missing > 0:
        tl.atomic_xchg(status, 1)
    if WIDTH < BLOCK_N:
        low = (words & 0xFFFF).to(tl.uint16).to(TYPE, bitcast=True).to(tl.float32)
        high = ((words >> 16) & 0xFFFF).to(tl.uint16).to(TYPE, bitcast=True).to(tl.float32)
        acc = tl.reshape(tl.join(tl.sum(low, axis=0), tl.sum(high, axis=0)), (BLOCK_M, BLOCK_N))
    else:
        acc = tl.sum((words & 0xFFFFFFFF).to(tl.uint32).to(TYPE, bitcast=True), axis=0)
    return acc
