"""The fused kernel of all-gather + GEMM, which reads remote rows from the inbox; ``push`` and ``pull`` have the others.

Rows layout: rank r holds rows [r * shard_rows, (r + 1) * shard_rows) of A, width = K.
K layout: rank r holds columns [r * width, (r + 1) * width) of A, shard_rows = M.
An inbox is a whole A, [slots, M, K]: in it every tile is one loop over K, whoever its rows and columns came from.

Launch after launch. Pushing needs no barrier: the inbox has two slots, used in turn, and a rank that pushes for epoch e
has finished epoch e - 1, hence had every peer's data of e - 1, hence knows that every peer has finished e - 2, the last
reader of the slot. Pulling needs two signals: ``ready`` (my shard is in place) and ``done`` (I have read yours). The
library's GEMM has one inbox, of which ``ready`` says that the GEMM before has read it.
No wait can starve its producer: communicating programs have the lowest program ids, are dispatched first and wait for
nothing but signals that other ranks send before they wait themselves.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.all_gather_gemm.push import place_of, scale_place_of
from autotune.kernels.primitives import trace as traces
from autotune.kernels.primitives.counters import arrive, end_phase, finish, read_epoch, wait_for_all
from autotune.kernels.primitives.gated import PLAIN
from autotune.kernels.primitives.products import accumulate, add_product, load_a, load_b
from autotune.kernels.primitives.scales import ROW, scaled
from autotune.kernels.primitives.splits import join_splits, split_range
from autotune.kernels.primitives.tiles import store_tile, swizzle
from autotune.kernels.primitives.transfer import fetch_shards, push_shard, wait_for_rows, wait_for_rows_of_each

NONE = tl.constexpr(0)
PUSH = tl.constexpr(1)
FETCH = tl.constexpr(2)


@triton.jit
def turn_of(limit, worker, pid, early, head_start, workers, programs):
    """The first turn in which this program's tile is ``limit`` or later (see ``tile_of``)."""
    if limit <= early:
        turn = tl.minimum(tl.cdiv(tl.maximum(limit - worker, 0), workers), head_start)
    else:
        turn = head_start + tl.cdiv(tl.maximum(limit - early - pid, 0), programs)
    return turn


@triton.jit
def tile_of(turn, worker, pid, early, head_start, workers, programs):
    """The tile this program computes in a turn.

    In the first ``head_start`` turns only the ``workers`` take tiles, the others communicate; then all programs do.
    """
    return tl.where(turn < head_start, turn * workers + worker, early + (turn - head_start) * programs + pid)


@triton.jit
def chunk_of(turn, rank, K, WORLD: tl.constexpr, CHUNKS: tl.constexpr, ROWS: tl.constexpr):
    """The range of K awaited in a turn: in order, or in K layout our own first and the others' backwards."""
    chunk = turn
    if not ROWS:
        chunk = (rank * CHUNKS // WORLD + CHUNKS - turn) % CHUNKS
    length = tl.cdiv(K, CHUNKS)
    return chunk * length, tl.minimum(chunk * length + length, K)


@triton.jit(
    do_not_specialize=[
        "M", "shard_rows", "transfer_rows", "comm_programs", "head_start", "group_m", "finishing", "rank", "spin_limit",
    ]
)  # fmt: skip
def gather_gemm_kernel(
    a, inbox, b, c, result, shard, inbox_pointer, bias, partials, tickets, scale_a, scale_shard, scale_inbox, scale_b,
    M, N, K, shard_rows, width, stride_bk, stride_bn, scale_columns, scale_pitch,
    transfer_rows, comm_programs, head_start, group_m, finishing, rank,
    heap_bases, epoch_counter, arrivals, ready, done, phase, trace, status, spin_limit,
    WORLD: tl.constexpr, ROWS: tl.constexpr, GATHERED: tl.constexpr, SLOTS: tl.constexpr, TRANSFER: tl.constexpr,
    ROTATE: tl.constexpr, STEP_ROWS: tl.constexpr, STEP_COLUMNS: tl.constexpr, VECTOR: tl.constexpr,
    HINT: tl.constexpr, SPLITS: tl.constexpr, PRELOAD: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    TMA: tl.constexpr, B_TRANSPOSED: tl.constexpr, EVEN_K: tl.constexpr,
    BIAS: tl.constexpr, FLATTEN: tl.constexpr, PROXY_FENCE: tl.constexpr, SCALES: tl.constexpr, PROMOTE: tl.constexpr,
    BARRIER: tl.constexpr, EPILOGUE: tl.constexpr = PLAIN, HALVES: tl.constexpr = 0, c_scales=None,
):  # fmt: skip
    """C [M, N] = all_gather(A) @ B [K, N] + bias, reading remote rows from the inbox as their units arrive.

    ``a``, ``inbox`` and ``c`` are descriptors with TMA, else the pointers ``shard``, ``inbox_pointer`` and ``result``.
    TRANSFER says what the first ``comm_programs`` programs do before they take tiles: push, fetch, or nothing (another
    kernel does).
    ``finishing`` is the number of programs that share the epoch. GATHERED: our own shard goes through the inbox too, so
    that a tile may have several owners and its depth be split; otherwise (rows layout, tiles that divide the shard)
    each tile has one owner, and our own are read from the shard. A tile waits for A in CHUNKS ranges of K, one after
    the other: in rows layout they are units of their own, in K layout the shards of some ranks each. Scales of A that
    travel, ``scale_shard``, arrive in ``scale_inbox``; the others are in ``scale_a``, for all rows.
    BARRIER: no tile begins before all ranks have pushed everything; only ``tune taxes`` wants that.
    """
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    workers = programs - comm_programs
    worker = pid - comm_programs
    epoch = read_epoch(epoch_counter)
    slot = epoch & (SLOTS - 1)  # not %: the epoch wraps around and is then negative
    first: tl.constexpr = 0 if GATHERED else 1
    scale_place = 0
    scale_first = 0
    scale_next = 0
    if scale_inbox is not None:
        scale_place = scale_place_of(rank, slot, M, shard_rows, scale_columns, scale_pitch, ROWS)
        scale_first = scale_place_of(0, slot, M, shard_rows, scale_columns, scale_pitch, ROWS)
        scale_next = scale_place_of(1, 0, M, shard_rows, scale_columns, scale_pitch, ROWS)

    if TRANSFER == FETCH:
        if pid == 0:
            arrive(ready, rank, heap_bases, WORLD)
    if pid < comm_programs:
        if TRANSFER == PUSH:
            push_shard(
                shard, inbox_pointer, place_of(rank, slot, M, K, shard_rows, width, ROWS), arrivals, shard_rows, width,
                K, transfer_rows, pid, comm_programs, rank, heap_bases,
                WORLD, CHUNKS if ROWS else 1, STEP_ROWS, STEP_COLUMNS, VECTOR, HINT, ROTATE, first,
                scale_shard, scale_inbox, scale_place, scale_columns, scale_pitch, trace,
            )  # fmt: skip
        if TRANSFER == FETCH:
            fetch_shards(
                shard, inbox_pointer, place_of(0, slot, M, K, shard_rows, width, ROWS),
                place_of(1, 0, M, K, shard_rows, width, ROWS), arrivals, shard_rows, width, K,
                transfer_rows, pid, comm_programs, rank, heap_bases, ready, done, epoch, status, spin_limit,
                WORLD, CHUNKS if ROWS else 1, STEP_ROWS, STEP_COLUMNS, VECTOR, HINT, ROTATE, first,
                scale_shard, scale_inbox, scale_first, scale_next, scale_columns, scale_pitch,
            )  # fmt: skip
    if TRANSFER == NONE:
        # Another kernel pushes: comm_programs is its size, and all programs of this one are workers.
        workers = programs
        worker = pid

    target = (epoch + 1) * comm_programs
    base_row = slot * M
    if scale_inbox is not None:
        scales = scale_inbox
        own_scales = scale_shard
        scale_row = base_row
        scale_rows = SLOTS * M
    else:
        scales = scale_a
        own_scales = scale_a
        scale_row = 0
        scale_rows = M
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    early = head_start * workers
    begin = tl.where(worker < 0, head_start, 0)
    end = turn_of(tiles_m * tiles_n * SPLITS, worker, pid, early, head_start, workers, programs)
    end = tl.maximum(end, begin)

    if BARRIER:
        if pid < comm_programs:
            traces.begin(trace, traces.ENDED, 0, 0)
            end_phase(phase, comm_programs, ready, rank, heap_bases, WORLD)
        if begin < end:
            traces.begin(trace, traces.PASSED, 0, 0)
            wait_for_all(ready, epoch + 1, status, spin_limit, WORLD)
            traces.end(trace, traces.PASSED, 0)

    if GATHERED:
        # In rows layout start at our own rows and go backwards, as the others arrive; in K layout from the top.
        own_m = rank * shard_rows // BLOCK_M if ROWS else 0
        for turn in tl.range(begin, end, flatten=FLATTEN):
            item = tile_of(turn, worker, pid, early, head_start, workers, programs)
            tile = item // SPLITS
            split = item % SPLITS
            m, n = swizzle(tile, tiles_m, tiles_n, group_m)
            if ROWS:
                m = (own_m + tiles_m - m) % tiles_m
            row = m * BLOCK_M
            last = tl.minimum(row + BLOCK_M, M) - 1
            first_k, end_k = split_range(split, K, SPLITS, BLOCK_K)
            traces.begin(trace, traces.TILE, turn - begin, item)
            acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
            if SCALES == ROW:
                waited = 0
            if PRELOAD:
                # The first step of B is on its way while we wait; with deep steps and splits that is all of it.
                b_tile = load_b(
                    b, N, first_k, end_k, n * BLOCK_N, stride_bk, stride_bn, BLOCK_N, BLOCK_K, TMA, B_TRANSPOSED,
                    HALVES,
                )  # fmt: skip
            for chunk in range(CHUNKS):
                low, high = chunk_of(chunk, rank, K, WORLD, CHUNKS, ROWS)
                low = tl.maximum(low, first_k)
                high = tl.minimum(high, end_k)
                if low < high:
                    if ROWS:
                        first_source = row // shard_rows
                        last_source = last // shard_rows
                    else:
                        first_source = low // width
                        last_source = (high - 1) // width
                    counters = arrivals + (chunk * WORLD * tl.cdiv(shard_rows, transfer_rows) if ROWS else 0)
                    traces.begin(trace, traces.WAIT, (turn - begin) * CHUNKS + chunk, item)
                    late = wait_for_rows_of_each(
                        counters, first_source, last_source, shard_rows if ROWS else 0, row, last, shard_rows,
                        transfer_rows, target, status, spin_limit, WORLD, PROXY_FENCE,
                    )  # fmt: skip
                    traces.end(trace, traces.WAIT, (turn - begin) * CHUNKS + chunk)
                    if SCALES == ROW:
                        waited += late
                    if PRELOAD:
                        a_tile = load_a(
                            inbox, base_row + row + late, SLOTS * M, K, low, high, BLOCK_M, BLOCK_K, TMA
                        )  # fmt: skip
                        acc = add_product(acc, a_tile, b_tile, PROMOTE)
                        low += BLOCK_K
                    acc = accumulate(
                        acc, inbox, base_row + row + late, SLOTS * M, K, b, N, n * BLOCK_N, stride_bk, stride_bn,
                        low, high, BLOCK_M, BLOCK_N, BLOCK_K, TMA, B_TRANSPOSED, EVEN_K,
                        scales, scale_b, SCALES, PROMOTE, HALVES,
                    )  # fmt: skip
            acc = scaled(
                acc, scales, scale_row + row + (waited if SCALES == ROW else 0), scale_rows, scale_b, n * BLOCK_N, N,
                BLOCK_M, BLOCK_N, SCALES, HALVES,
            )  # fmt: skip
            if SPLITS == 1:
                store_tile(
                    acc, c, row, n * BLOCK_N, M, N, bias, BLOCK_M, BLOCK_N, TMA, BIAS, EPILOGUE, HALVES,
                    c_scales=c_scales,
                )  # fmt: skip
            else:
                acc, whole = join_splits(acc, partials, tickets, tile, split, SPLITS, BLOCK_M, BLOCK_N)
                if whole:
                    store_tile(
                        acc, c, row, n * BLOCK_N, M, N, bias, BLOCK_M, BLOCK_N, TMA, BIAS, EPILOGUE, HALVES,
                    c_scales=c_scales,
                    )  # fmt: skip
            traces.end(trace, traces.TILE, turn - begin)
    else:
        own_m = shard_rows // BLOCK_M
        own = own_m * tiles_n
        middle = tl.maximum(turn_of(own, worker, pid, early, head_start, workers, programs), begin)
        for turn in tl.range(begin, middle, flatten=FLATTEN):
            tile = tile_of(turn, worker, pid, early, head_start, workers, programs)
            m, n = swizzle(tile, own_m, tiles_n, group_m)
            traces.begin(trace, traces.TILE, turn - begin, tile)
            acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
            acc = accumulate(
                acc, a, m * BLOCK_M, shard_rows, K, b, N, n * BLOCK_N, stride_bk, stride_bn,
                0, K, BLOCK_M, BLOCK_N, BLOCK_K, TMA, B_TRANSPOSED, EVEN_K, own_scales, scale_b, SCALES, PROMOTE,
                HALVES,
            )  # fmt: skip
            acc = scaled(
                acc, own_scales, m * BLOCK_M, shard_rows, scale_b, n * BLOCK_N, N, BLOCK_M, BLOCK_N, SCALES, HALVES
            )  # fmt: skip
            store_tile(
                acc, c, rank * shard_rows + m * BLOCK_M, n * BLOCK_N, M, N, bias, BLOCK_M, BLOCK_N, TMA, BIAS,
                EPILOGUE, HALVES, c_scales=c_scales,
            )  # fmt: skip
            traces.end(trace, traces.TILE, turn - begin)
        for turn in tl.range(middle, end, flatten=FLATTEN):
            tile = tile_of(turn, worker, pid, early, head_start, workers, programs) - own
            m, n = swizzle(tile, tiles_m - own_m, tiles_n, group_m)
            if ROTATE:
                back = 1 + m // own_m
                m_in_shard = m % own_m
            else:
                back = 1 + m % (WORLD - 1 + (WORLD == 1))
                m_in_shard = m // (WORLD - 1 + (WORLD == 1))
            source = (rank + WORLD - back) % WORLD
            row_in_shard = m_in_shard * BLOCK_M
            row = source * shard_rows + row_in_shard
            traces.begin(trace, traces.TILE, turn - begin, tile + own)
            acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
            if SCALES == ROW:
                waited = 0
            for chunk in range(CHUNKS):
                low, high = chunk_of(chunk, rank, K, WORLD, CHUNKS, ROWS)
                traces.begin(trace, traces.WAIT, (turn - begin) * CHUNKS + chunk, tile + own)
                late = wait_for_rows(
                    arrivals + chunk * WORLD * tl.cdiv(shard_rows, transfer_rows), source, row_in_shard,
                    row_in_shard + BLOCK_M - 1, shard_rows, transfer_rows, target, status, spin_limit, PROXY_FENCE,
                )  # fmt: skip
                traces.end(trace, traces.WAIT, (turn - begin) * CHUNKS + chunk)
                if SCALES == ROW:
                    waited += late
                acc = accumulate(
                    acc, inbox, base_row + row + late, SLOTS * M, K, b, N, n * BLOCK_N, stride_bk, stride_bn,
                    low, high, BLOCK_M, BLOCK_N, BLOCK_K, TMA, B_TRANSPOSED, EVEN_K, scales, scale_b, SCALES, PROMOTE,
                    HALVES,
                )  # fmt: skip
            acc = scaled(
                acc, scales, scale_row + row + (waited if SCALES == ROW else 0), scale_rows, scale_b, n * BLOCK_N, N,
                BLOCK_M, BLOCK_N, SCALES, HALVES,
            )  # fmt: skip
            store_tile(
                acc, c, row, n * BLOCK_N, M, N, bias, BLOCK_M, BLOCK_N, TMA, BIAS, EPILOGUE, HALVES,
                    c_scales=c_scales,
            )  # fmt: skip
            traces.end(trace, traces.TILE, turn - begin)

    in_vain = heap.timed_out(status)  # on its way while the launch is finished
    last_out = finish(epoch_counter, finishing)
    if TRANSFER == FETCH:
        if last_out:
            wait_for_all(done, target, status, spin_limit, WORLD)
    heap.seal_if(in_vain, result, tl.cast(M, tl.int64) * (N if EPILOGUE == PLAIN else N // 2))
