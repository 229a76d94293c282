"""For ``tune taxes``: the reduce-scatter in a launch of its own, behind a GEMM whose tiles stay where they are made."""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.primitives.counters import arrive, finish_unordered, read_epoch, wait_for_all
from autotune.kernels.primitives.exchange import add_tiles, read_tile
from autotune.kernels.primitives.known import Gemm, known
from autotune.kernels.primitives.tiles import Output, row_of, store_tile


@triton.jit(do_not_specialize=["rows", "rank", "spin_limit"])
def sum_tiles_kernel(
    c, result, bias, residual, inbox, inbox_scales, rows, N, rank, heap_bases, epoch_counter, ready, status, spin_limit,
    WORLD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TMA: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """C [rows, N] = the sum of all ranks' parts of our tiles, + bias + residual; a tile a program.

    Tells the peers that our tiles are there, which is so when this launch begins, and waits until theirs are. Why the
    next launch may write to the other slot: ``device.py``.
    """
    peers = heap.Peers(rank, heap_bases, status, spin_limit)
    out = Output(c, rows, N, bias if BIAS else None, residual)
    FORM: tl.constexpr = known(Gemm, BLOCK_M, BLOCK_N, None, TMA, None, None)
    tile, tiles = tl.program_id(0), tl.num_programs(0)
    epoch = read_epoch(epoch_counter)
    slot = (epoch & 1).to(tl.int32)
    if tile == 0:
        arrive(ready, peers, WORLD)
    wait_for_all(ready, epoch + 1, peers, WORLD)
    place = (slot * WORLD + rank) * tiles + tile
    acc = read_tile(inbox, inbox_scales, place, BLOCK_M, BLOCK_N)
    acc = add_tiles(acc, inbox, inbox_scales, place, tiles, ready, 1, epoch + 1, peers, WORLD, True)
    tiles_m = tl.cdiv(rows, BLOCK_M)
    store_tile(acc, out, row_of(tile % tiles_m, rows, BLOCK_M), tile // tiles_m * BLOCK_N, FORM)
    in_vain = heap.timed_out(status)
    finish_unordered(epoch_counter, tiles, tile == 0)
    heap.seal_if(in_vain, result, tl.cast(rows, tl.int64) * N)
