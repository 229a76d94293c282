"""The paper's consumer-driven all-gather + GEMM: no inbox, each tile of A is loaded from its owner."""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.primitives.counters import arrive, finish, read_epoch, wait_for_all
from autotune.kernels.primitives.gated import PLAIN, loaded_columns
from autotune.kernels.primitives.known import Gemm, known
from autotune.kernels.primitives.products import Operands, add_product, load_b_by_tma
from autotune.kernels.primitives.scales import BLOCK, ROW, SIDE, block_scale_b, scaled, scaled_columns
from autotune.kernels.primitives.tiles import Output, store_tile, swizzle
from autotune.kernels.primitives.transfer import in_units


@triton.jit(do_not_specialize=["M", "shard_rows", "group_m", "rank", "spin_limit"])
def pull_gemm_kernel(
    b, c, result, shard, bias, scale_a, scale_shard, scale_b,
    M, N, K, shard_rows, width, stride_bk, stride_bn, scale_columns, scale_pitch, group_m, rank,
    heap_bases, epoch_counter, ready, done, status, spin_limit,
    WORLD: tl.constexpr, ROWS: tl.constexpr, BY_SHARD: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    TMA: tl.constexpr, B_TRANSPOSED: tl.constexpr, EVEN_K: tl.constexpr,
    BIAS: tl.constexpr, HINT: tl.constexpr, SCALES: tl.constexpr, PROMOTE: tl.constexpr,
    EPILOGUE: tl.constexpr = PLAIN, HALVES: tl.constexpr = 0, c_scales=None,
):  # fmt: skip
    """The paper's consumer-driven kernel: every tile of A is loaded from its owner, again for each column of tiles.

    With TMA only B and C go through descriptors. BY_SHARD: tiles begin anew at every shard, and ``c`` is [WORLD,
    shard_rows, columns]; otherwise a tile may have rows of several owners.
    """
    peers = heap.Peers(rank, heap_bases, status, spin_limit)
    operands = Operands(None, M, K, b, N, stride_bk, stride_bn, scale_a, scale_b)
    FORM: tl.constexpr = known(
        Gemm, BLOCK_M, BLOCK_N, BLOCK_K, TMA, B_TRANSPOSED, EVEN_K, SCALES, PROMOTE, EPILOGUE, HALVES
    )
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    epoch = read_epoch(epoch_counter)
    if pid == 0:
        arrive(ready, peers, WORLD)
    own_m = tl.cdiv(shard_rows, BLOCK_M)
    tiles_m = WORLD * own_m if BY_SHARD else tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    width = in_units(width, HINT * 8 // shard.dtype.element_ty.primitive_bitwidth)
    # Start at our own shard, so that no two ranks read from one peer at a time.
    first_m = rank * (own_m if BY_SHARD else shard_rows // BLOCK_M) if ROWS else 0
    segments: tl.constexpr = 1 if ROWS else WORLD
    ranks = tl.arange(0, triton.next_power_of_2(WORLD))
    late = heap.wait_each(ready + ranks, ranks < WORLD, epoch + 1, peers)
    for tile in range(pid, tiles_m * tiles_n, programs):
        m, n = swizzle(tile, tiles_m, tiles_n, group_m)
        m = (m + first_m) % tiles_m
        if BY_SHARD:
            owner = m // own_m
            row = m % own_m * BLOCK_M
            rows = row + tl.arange(0, BLOCK_M)
            exist = (rows < shard_rows)[:, None]  # what does not is not loaded over the links
            out = Output(c, shard_rows, N, bias if BIAS else None, None, c_scales, owner)
        else:
            row = m * BLOCK_M
            rows = row + tl.arange(0, BLOCK_M)
            exist = (rows < M)[:, None]
            owner = (tl.minimum(rows, M - 1) // shard_rows)[:, None]
            rows = rows % shard_rows
            out = Output(c, M, N, bias if BIAS else None, None, c_scales)
        columns = loaded_columns(n * BLOCK_N, N, FORM)
        ks = tl.arange(0, BLOCK_K)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for segment in range(segments):
            source = owner if ROWS else (rank + segment) % WORLD
            first_k = 0 if ROWS else source * width
            a_pointers = shard + rows.to(tl.int64)[:, None] * width + ks[None, :] + late * 16
            b_pointers = (
                b + (first_k + ks).to(tl.int64)[:, None] * stride_bk + columns.to(tl.int64)[None, :] * stride_bn
                if not TMA else 0
            )  # fmt: skip
            if SCALES == BLOCK:
                scale_pointers = (scale_shard + rows.to(tl.int64) * scale_columns + late * 4)[:, None]
            for k in range(0, width, BLOCK_K):
                inside = exist if EVEN_K else exist & (ks[None, :] < width - k)
                a_tile = heap.load(a_pointers, rank, source, heap_bases, mask=inside, other=0.0, hint=(1, HINT))
                if TMA:
                    b_tile = load_b_by_tma(b, first_k + k, n * BLOCK_N, FORM)
                else:
                    if EVEN_K:
                        b_tile = tl.load(b_pointers)
                    else:
                        b_tile = tl.load(b_pointers, mask=ks[:, None] < width - k, other=0.0)
                    b_pointers += BLOCK_K * stride_bk
                if SCALES == BLOCK:
                    factors = heap.load(scale_pointers + k // SIDE, rank, source, heap_bases, mask=exist, other=0.0)
                    at = first_k + k
                    factors = factors * block_scale_b(scale_b, at, scale_pitch, n * BLOCK_N, N, FORM)
                    acc += tl.dot(a_tile, b_tile) * factors
                else:
                    acc = add_product(acc, a_tile, b_tile, PROMOTE)
                a_pointers += BLOCK_K
        if SCALES == ROW and scale_shard is not None:
            of_rows = (scale_shard + rows + late * 4)[:, None]
            acc *= heap.load(of_rows, rank, owner, heap_bases, mask=exist, other=0.0)
            acc = scaled_columns(acc, scale_b, n * BLOCK_N, N, FORM)
        else:
            acc = scaled(acc, operands, row, M, n * BLOCK_N, FORM)
        store_tile(acc, out, row, n * BLOCK_N, FORM)
    in_vain = heap.timed_out(status)
    if finish(epoch_counter, programs):
        heap.signal_each(done + rank, peers, WORLD, 0)
        wait_for_all(done, epoch + 1, peers, WORLD)
    heap.seal_if(in_vain, result, tl.cast(M, tl.int64) * (N if EPILOGUE == PLAIN else N // 2))
