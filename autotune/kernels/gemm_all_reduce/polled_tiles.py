"""Tiles that the reader polls: LL words, of two elements of 16 bits or one of 32; or sentinel words, elements alone."""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.primitives.exchange import inside_tile
from autotune.kernels.primitives.ll import ll_data, ll_sum, ll_wait, ll_words
from autotune.kernels.primitives.sentinel import sentinel_take


@triton.jit
def ll_send_tile(
    part, flag, inbox, index, first, rank, heap_bases, rows,
    PEERS: tl.constexpr, WORLD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Store a tile, in C's type, as tile ``index`` of the inbox (int64) of PEERS ranks from ``first`` on."""
    WIDTH: tl.constexpr = BLOCK_N // 2 if part.dtype.primitive_bitwidth == 16 else BLOCK_N
    data = ll_data(part, BLOCK_M, BLOCK_N)
    pointers = inbox + tl.cast(index, tl.int64) * (BLOCK_M * WIDTH) + inside_tile(BLOCK_M, WIDTH)
    exists = (tl.arange(0, BLOCK_M) < rows)[:, None]
    for turn in tl.static_range(PEERS):
        peer = (first + turn) % WORLD
        heap.store(pointers, ll_words(data, flag), rank, peer, heap_bases, mask=exists, hint=(1, 16))


@triton.jit
def _parts(inbox, index, apart, rows, SOURCES: tl.constexpr, BLOCK_M: tl.constexpr, WIDTH: tl.constexpr):
    """Places of the words of all parts of a tile, [sources, BLOCK_M, WIDTH], and a mask of those that exist."""
    sources = tl.arange(0, triton.next_power_of_2(SOURCES))[:, None, None]
    exists = (sources < SOURCES) & (tl.arange(0, BLOCK_M) < rows)[None, :, None]
    tiles = (index + sources * apart).to(tl.int64)
    return inbox + tiles * (BLOCK_M * WIDTH) + inside_tile(BLOCK_M, WIDTH)[None, :, :], exists


@triton.jit
def ll_sum_tiles(
    inbox, index, apart, flag, status, spin_limit, rows, TYPE: tl.constexpr,
    SOURCES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Wait for all parts of a tile and add them up: fp32 [BLOCK_M, BLOCK_N].

    Part number s is tile ``index`` + s * ``apart`` of our inbox. All parts are polled at once. TYPE is C's.
    """
    WIDTH: tl.constexpr = BLOCK_N // 2 if TYPE.primitive_bitwidth == 16 else BLOCK_N
    pointers, exists = _parts(inbox, index, apart, rows, SOURCES, BLOCK_M, WIDTH)
    words = ll_wait(pointers, flag, exists, status, spin_limit)
    return ll_sum(words, TYPE, BLOCK_M, BLOCK_N)


@triton.jit
def sentinel_sum_tiles(
    inbox, index, apart, status, spin_limit, rows, TYPE: tl.constexpr, SOURCES: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Sum tiles whose elements are sentinel words themselves, and empty them."""
    pointers, exists = _parts(inbox, index, apart, rows, SOURCES, BLOCK_M, BLOCK_N)
    data = sentinel_take(pointers, tl.broadcast_to(exists, pointers.shape), status, spin_limit)
    return tl.sum(data.to(TYPE, bitcast=True).to(tl.float32), axis=0)
