"""For ``tune taxes``: our GEMM in a launch of its own, whose tiles stay in memory until the next one exchanges them."""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.primitives.counters import read_epoch
from autotune.kernels.primitives.exchange import send_tile
from autotune.kernels.primitives.known import Gemm, known
from autotune.kernels.primitives.products import Operands, split_product
from autotune.kernels.primitives.tiles import row_of, swizzle


@triton.jit(do_not_specialize=["M", "rows", "group_m", "rank"])
def keep_tiles_kernel(
    a, b, scale_a, scale_b, kept, kept_scales, partials, tickets, M, N, K, rows, stride_bk, stride_bn, group_m,
    rank, heap_bases, epoch_counter, SLOTS: tl.constexpr, SPLITS: tl.constexpr, FLATTEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TMA: tl.constexpr, B_TRANSPOSED: tl.constexpr,
    EVEN_K: tl.constexpr, SCALES: tl.constexpr, PROMOTE: tl.constexpr,
):  # fmt: skip
    """A [M, K] @ B [K, N], tile by tile, into ``kept`` [SLOTS, owners, tiles, BLOCK_M, BLOCK_N].

    Tiles are cut owner by owner, ``rows`` rows each, and an owner's are numbered down the columns. The epoch goes on
    with the launch that takes them.
    """
    peers = heap.Peers(rank, heap_bases, None, None)
    operands = Operands(a, M, K, b, N, stride_bk, stride_bn, scale_a, scale_b)
    FORM: tl.constexpr = known(Gemm, BLOCK_M, BLOCK_N, BLOCK_K, TMA, B_TRANSPOSED, EVEN_K, SCALES, PROMOTE)
    slot = (read_epoch(epoch_counter) & (SLOTS - 1)).to(tl.int32)
    tiles_m = tl.cdiv(rows, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    rows_of_tiles = M // rows * tiles_m
    tiles = rows_of_tiles * tiles_n
    for item in tl.range(tl.program_id(0), tiles * SPLITS, tl.num_programs(0), flatten=FLATTEN):
        m, n = swizzle(item // SPLITS, rows_of_tiles, tiles_n, group_m)
        owner = m // tiles_m
        m = m % tiles_m
        number = (owner * tiles_n + n) * tiles_m + m
        row = owner * rows + row_of(m, rows, BLOCK_M)
        acc, whole = split_product(
            operands, row, n * BLOCK_N, partials, tickets, number, item % SPLITS, SPLITS, FORM
        )  # fmt: skip
        if whole:
            send_tile(acc, kept, kept_scales, slot * tiles + number, rank, peers)
