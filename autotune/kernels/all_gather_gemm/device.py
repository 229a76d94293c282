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

from collections import namedtuple

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.primitives import trace as traces
from autotune.kernels.primitives import transfer
from autotune.kernels.primitives.counters import arrive, finish, finish_unordered, read_epoch, wait_for_all
from autotune.kernels.primitives.gated import PLAIN
from autotune.kernels.primitives.known import Gemm, known
from autotune.kernels.primitives.products import Operands, accumulate, add_product, load_a, load_b, tile_product
from autotune.kernels.primitives.scales import ROW, scaled
from autotune.kernels.primitives.splits import join_splits, split_range
from autotune.kernels.primitives.tiles import Output, row_of, store_tile, swizzle

NONE = tl.constexpr(0)
PUSH = tl.constexpr(1)
FETCH = tl.constexpr(2)

Layout = namedtuple("Layout", "WORLD CHUNKS ROWS GATHERED PRELOAD PROXY_FENCE")
"""A's shards, and the CHUNKS ranges of K in which it is awaited."""

Turns = namedtuple("Turns", "worker pid early head_start workers programs")
"""This program among all. In the first ``head_start`` turns only the ``workers`` take tiles, up to tile ``early``, and
the others communicate; then all programs do.
"""

Tile = namedtuple("Tile", "row column first_k end_k turn number source row_in_shard", defaults=(0, 0))
"""A tile of the product whose rows arrive: all of one shard unless they are GATHERED."""


@triton.jit
def turn_of(limit, turns):
    """The first turn in which this program's tile is ``limit`` or later (see ``tile_of``)."""
    if limit <= turns.early:
        turn = tl.minimum(tl.cdiv(tl.maximum(limit - turns.worker, 0), turns.workers), turns.head_start)
    else:
        turn = turns.head_start + tl.cdiv(tl.maximum(limit - turns.early - turns.pid, 0), turns.programs)
    return turn


@triton.jit
def tile_of(turn, turns):
    """The tile this program computes in a turn."""
    late = turns.early + (turn - turns.head_start) * turns.programs + turns.pid
    return tl.where(turn < turns.head_start, turn * turns.workers + turns.worker, late)


@triton.jit
def chunk_of(turn, rank, K, LAYOUT: tl.constexpr):
    """The range of K awaited in a turn: in order, or in K layout our own first and the others' backwards."""
    chunk = turn
    if not LAYOUT.ROWS:
        chunk = (rank * LAYOUT.CHUNKS // LAYOUT.WORLD + LAYOUT.CHUNKS - turn) % LAYOUT.CHUNKS
    length = tl.cdiv(K, LAYOUT.CHUNKS)
    return chunk * length, tl.minimum(chunk * length + length, K)


@triton.jit
def wait_for_chunk(
    chunk, low, high, tile, shard, inbox, target, peers, LAYOUT: tl.constexpr, FORM: tl.constexpr
):  # fmt: skip
    """Wait for the columns ``low`` to ``high`` of a tile's rows. Returns what ``wait_for_rows`` does."""
    counters = inbox.arrivals
    if LAYOUT.ROWS:
        counters += chunk * LAYOUT.WORLD * tl.cdiv(shard.rows, inbox.transfer_rows)
    if LAYOUT.GATHERED:
        last = tl.minimum(tile.row + FORM.BLOCK_M, inbox.rows) - 1
        if LAYOUT.ROWS:
            first_source = tile.row // shard.rows
            last_source = last // shard.rows
        else:
            first_source = low // shard.width
            last_source = (high - 1) // shard.width
        late = transfer.wait_for_rows_of_each(
            counters, first_source, last_source, shard.rows if LAYOUT.ROWS else 0, tile.row, last, shard.rows,
            inbox.transfer_rows, target, peers, LAYOUT.WORLD, LAYOUT.PROXY_FENCE,
        )  # fmt: skip
    else:
        late = transfer.wait_for_rows(
            counters, tile.source, tile.row_in_shard, tile.row_in_shard + FORM.BLOCK_M - 1, shard.rows,
            inbox.transfer_rows, target, peers, LAYOUT.PROXY_FENCE,
        )  # fmt: skip
    return late


@triton.jit
def arrived_product(
    tile, operands, shard, inbox, target, trace, peers, LAYOUT: tl.constexpr, FORM: tl.constexpr
):  # fmt: skip
    """A tile's product, range after range as its rows arrive; ``operands`` has the inbox as A."""
    row = inbox.slot * inbox.rows + tile.row
    acc = tl.zeros((FORM.BLOCK_M, FORM.BLOCK_N), dtype=tl.float32)
    if FORM.SCALES == ROW:
        waited = 0
    if LAYOUT.PRELOAD:
        # The first step of B is on its way while we wait; with deep steps and splits that is all of it.
        b_tile = load_b(operands, tile.first_k, tile.end_k, tile.column, FORM)
    for chunk in range(LAYOUT.CHUNKS):
        low, high = chunk_of(chunk, peers.rank, operands.K, LAYOUT)
        if LAYOUT.GATHERED:
            low = tl.maximum(low, tile.first_k)
            high = tl.minimum(high, tile.end_k)
        if not LAYOUT.GATHERED or low < high:
            traces.begin(trace, traces.WAIT, tile.turn * LAYOUT.CHUNKS + chunk, tile.number)
            late = wait_for_chunk(chunk, low, high, tile, shard, inbox, target, peers, LAYOUT, FORM)
            traces.end(trace, traces.WAIT, tile.turn * LAYOUT.CHUNKS + chunk)
            if FORM.SCALES == ROW:
                waited += late
            if LAYOUT.PRELOAD:
                a_tile = load_a(operands, row + late, low, high, FORM)
                acc = add_product(acc, a_tile, b_tile, FORM.PROMOTE)
                low += FORM.BLOCK_K
            acc = accumulate(acc, operands, row + late, tile.column, low, high, FORM)
    if inbox.scales is not None:
        scale_row = row
        scale_rows = operands.rows
    else:
        scale_row = tile.row
        scale_rows = inbox.rows
    if FORM.SCALES == ROW:
        scale_row += waited
    return scaled(acc, operands, scale_row, scale_rows, tile.column, FORM)


@triton.jit(
    do_not_specialize=[
        "M", "shard_rows", "transfer_rows", "comm_programs", "head_start", "group_m", "finishing", "rank", "spin_limit",
    ]
)  # fmt: skip
def gather_gemm_kernel(
    a, inbox, b, c, result, shard, inbox_pointer, bias, partials, tickets, scale_a, scale_shard, scale_inbox, scale_b,
    M, N, K, shard_rows, width, stride_bk, stride_bn, scale_columns, scale_pitch,
    transfer_rows, comm_programs, head_start, group_m, finishing, rank,
    heap_bases, epoch_counter, arrivals, ready, done, trace, status, spin_limit,
    WORLD: tl.constexpr, ROWS: tl.constexpr, GATHERED: tl.constexpr, SLOTS: tl.constexpr, TRANSFER: tl.constexpr,
    ROTATE: tl.constexpr, STEP_ROWS: tl.constexpr, STEP_COLUMNS: tl.constexpr, VECTOR: tl.constexpr,
    HINT: tl.constexpr, SPLITS: tl.constexpr, PRELOAD: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    TMA: tl.constexpr, B_TRANSPOSED: tl.constexpr, EVEN_K: tl.constexpr,
    BIAS: tl.constexpr, FLATTEN: tl.constexpr, PROXY_FENCE: tl.constexpr, SCALES: tl.constexpr, PROMOTE: tl.constexpr,
    EPILOGUE: tl.constexpr = PLAIN, HALVES: tl.constexpr = 0, c_scales=None,
):  # fmt: skip
    """C [M, N] = all_gather(A) @ B [K, N] + bias, reading remote rows from the inbox as their units arrive.

    ``a``, ``inbox`` and ``c`` are descriptors with TMA, else the pointers ``shard``, ``inbox_pointer`` and ``result``.
    TRANSFER says what the first ``comm_programs`` programs do before they take tiles: push, fetch, or nothing (another
    kernel does).
    ``finishing`` is the number of programs that share the epoch. GATHERED: our own shard goes through the inbox too, so
    that a tile may have several owners and its depth be split; otherwise (rows layout) tiles begin anew at every shard,
    so that each has one owner, our own are read from the shard, and ``c`` is [WORLD, shard_rows, columns]. A tile waits
    for A in CHUNKS ranges of K, one after the other: in rows layout they are units of their own, in K layout the shards
    of some ranks each. Scales of A that travel, ``scale_shard``, arrive in ``scale_inbox``; the others are in
    ``scale_a``, for all rows.
    """
    peers = heap.Peers(rank, heap_bases, status, spin_limit)
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    workers = programs - comm_programs
    worker = pid - comm_programs
    epoch = read_epoch(epoch_counter)
    slot = (epoch & (SLOTS - 1)).to(tl.int32)  # not %: the epoch wraps around and is then negative
    ours = transfer.Shard(shard, shard_rows, transfer.in_units(width, VECTOR), scale_shard, scale_columns)
    pitch = transfer.in_units(K, VECTOR)
    box = transfer.Inbox(inbox_pointer, slot, M, pitch, arrivals, transfer_rows, scale_inbox, scale_pitch)
    FIRST: tl.constexpr = 0 if GATHERED else 1
    STEPS: tl.constexpr = known(
        transfer.Steps, WORLD, ROWS, CHUNKS if ROWS else 1, STEP_ROWS, STEP_COLUMNS, VECTOR, HINT, ROTATE, FIRST
    )
    if TRANSFER == FETCH:
        if pid == 0:
            arrive(ready, peers, WORLD)
    if pid < comm_programs:
        if TRANSFER == PUSH:
            transfer.push_shard(ours, box, pid, comm_programs, peers, STEPS, trace)
        if TRANSFER == FETCH:
            transfer.fetch_shards(ours, box, ready, done, epoch, pid, comm_programs, peers, STEPS)
    if TRANSFER == NONE:
        # Another kernel pushes: comm_programs is its size, and all programs of this one are workers.
        workers = programs
        worker = pid

    target = ((epoch + 1) * comm_programs).to(tl.int32)
    scales = scale_a if scale_inbox is None else scale_inbox
    own_scales = scale_a if scale_inbox is None else scale_shard
    arriving = Operands(inbox, SLOTS * M, K, b, N, stride_bk, stride_bn, scales, scale_b)
    own_operands = Operands(a, shard_rows, K, b, N, stride_bk, stride_bn, own_scales, scale_b)
    FORM: tl.constexpr = known(
        Gemm, BLOCK_M, BLOCK_N, BLOCK_K, TMA, B_TRANSPOSED, EVEN_K, SCALES, PROMOTE, EPILOGUE, HALVES
    )
    LAYOUT: tl.constexpr = known(Layout, WORLD, CHUNKS, ROWS, GATHERED, PRELOAD and GATHERED, PROXY_FENCE)
    own_m = tl.cdiv(shard_rows, BLOCK_M)
    tiles_m = tl.cdiv(M, BLOCK_M) if GATHERED else WORLD * own_m
    tiles_n = tl.cdiv(N, BLOCK_N)
    turns = Turns(worker, pid, head_start * workers, head_start, workers, programs)
    begin = tl.where(worker < 0, head_start, 0)
    end = tl.maximum(turn_of(tiles_m * tiles_n * SPLITS, turns), begin)

    if GATHERED:
        # In rows layout start at our own rows and go backwards, as the others arrive; in K layout from the top.
        first_m = rank * shard_rows // BLOCK_M if ROWS else 0
        out = Output(c, M, N, bias if BIAS else None, None, c_scales)
        for turn in tl.range(begin, end, flatten=FLATTEN):
            item = tile_of(turn, turns)
            m, n = swizzle(item // SPLITS, tiles_m, tiles_n, group_m)
            if ROWS:
                m = (first_m + tiles_m - m) % tiles_m
            first_k, end_k = split_range(item % SPLITS, K, SPLITS, BLOCK_K)
            tile = Tile(row_of(m, M, BLOCK_M), n * BLOCK_N, first_k, end_k, turn - begin, item)
            traces.begin(trace, traces.TILE, turn - begin, item)
            acc = arrived_product(tile, arriving, ours, box, target, trace, peers, LAYOUT, FORM)
            whole = True
            if SPLITS > 1:
                acc, whole = join_splits(acc, partials, tickets, item // SPLITS, item % SPLITS, SPLITS)
            if SPLITS == 1 or whole:
                store_tile(acc, out, tile.row, tile.column, FORM)
            traces.end(trace, traces.TILE, turn - begin)
    else:
        own = own_m * tiles_n
        middle = tl.maximum(turn_of(own, turns), begin)
        for turn in tl.range(begin, middle, flatten=FLATTEN):
            number = tile_of(turn, turns)
            m, n = swizzle(number, own_m, tiles_n, group_m)
            traces.begin(trace, traces.TILE, turn - begin, number)
            row = row_of(m, shard_rows, BLOCK_M)
            acc = tile_product(own_operands, row, n * BLOCK_N, 0, K, FORM)
            out = Output(c, shard_rows, N, bias if BIAS else None, None, c_scales, rank)
            store_tile(acc, out, row, n * BLOCK_N, FORM)
            traces.end(trace, traces.TILE, turn - begin)
        others: tl.constexpr = WORLD - 1 + (WORLD == 1)
        for turn in tl.range(middle, end, flatten=FLATTEN):
            number = tile_of(turn, turns)
            m, n = swizzle(number - own, tiles_m - own_m, tiles_n, group_m)
            if ROTATE:
                back = 1 + m // own_m
                m = m % own_m
            else:
                back = 1 + m % others
                m = m // others
            source = (rank + WORLD - back) % WORLD
            first = source * shard_rows
            row = row_of(m, shard_rows, BLOCK_M)
            tile = Tile(first + row, n * BLOCK_N, 0, K, turn - begin, number, source, row)
            traces.begin(trace, traces.TILE, turn - begin, number)
            acc = arrived_product(tile, arriving, ours, box, target, trace, peers, LAYOUT, FORM)
            owner = tile.row // shard_rows  # once more: during the product every register is in use
            out = Output(c, shard_rows, N, bias if BIAS else None, None, c_scales, owner)
            store_tile(acc, out, tile.row - owner * shard_rows, tile.column, FORM)
            traces.end(trace, traces.TILE, turn - begin)

    in_vain = heap.timed_out(status)  # on its way while the launch is finished
    if TRANSFER == FETCH:
        if finish(epoch_counter, finishing):
            wait_for_all(done, target, peers, WORLD)
    else:
        finish_unordered(epoch_counter, finishing, tl.program_id(0) == 0)
    heap.seal_if(in_vain, result, tl.cast(M, tl.int64) * (N if EPILOGUE == PLAIN else N // 2))
