"""Device code of grouped GEMM + combine: one kernel, one launch. What it is made of lies in ``kernels/moe``.

Programs by their ids: those that place rows (not in ``one_shot``); those of the GEMM; those that send sums (not in
``one_shot`` either); those that add up. The first two wait for nothing in this launch, the others only for programs
with lower ids, of their own rank or of others: no wait starves its producer, whoever finds room beside whom.

``push`` and ``pull`` leave products in ``y``, in GROUPS groups of columns: all tiles of a group come before the next
group's, whatever their experts, so that sums of the first columns travel while the others are computed. A token's rows
may be any expert's; only columns can be ready one after the other. The last program to finish a tile of a group says
so (``ready``). In ``one_shot`` a tile's rows, times their gates, go to their tokens' ranks as they leave the registers.

Launch after launch: as in the combine alone (``moe_combine/device.py``); the GEMM's programs are those that send rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.moe.grouped_gemm import (
    expert_product,
    expert_tile,
    row_blocks,
    rows_of,
    scales_per_row,
    store_expert_tile,
)
from autotune.kernels.moe.sums import add_rows, add_sums, place_rows, send_sums, send_tile_rows
from autotune.kernels.moe_combine.device import ONE_SHOT, PULL
from autotune.kernels.primitives.counters import arrive, finish, last_of, wait_for_all, wait_in_slot, wide_epoch
from autotune.kernels.primitives.gated import PLAIN


@triton.jit
def finish_group(
    tickets, ready, arrivals, group, tiles, slot, rank, heap_bases, WORLD: tl.constexpr, MODE: tl.constexpr
):
    """Count a tile of a group of ``tiles`` as finished; the last says so: to this rank, or to all that have rows."""
    if last_of(tickets + group, tiles):
        if MODE == ONE_SHOT:
            heap.signal_each(arrivals + slot, rank, heap_bases, WORLD, 0)
        else:
            heap.signal(ready + group, rank, rank, heap_bases)


@triton.jit
def multiply_groups(
    a, b, scale_a, scale_b, y, offsets, pairs, row_gates, inbox, tickets, ready, arrivals, T, H, K, depth, stride_be,
    stride_bk, stride_bn, group_m, epoch, part, parts, rank, heap_bases, TYPE: tl.constexpr, WORLD: tl.constexpr,
    MODE: tl.constexpr, LL: tl.constexpr, GROUPS: tl.constexpr, EXPERTS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, A_TMA: tl.constexpr, TMA: tl.constexpr, B_TRANSPOSED: tl.constexpr,
    EVEN_K: tl.constexpr, SWAP: tl.constexpr, SCALES: tl.constexpr, PROMOTE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """This part of ``parts`` of the tiles, group by group."""
    slot = (epoch & 1).to(tl.int32)
    tiles_n = tl.cdiv(H, BLOCK_N)
    wide = tl.cdiv(tiles_n, GROUPS)
    blocks = row_blocks(offsets, EXPERTS, BLOCK_M)
    rows_of_tiles = tl.max(blocks, axis=0)
    if not LL:
        if (rows_of_tiles == 0) & (part == 0):  # there is nothing to do, and nobody else will say so
            for group in range(GROUPS):
                finish_group(tickets, ready, arrivals, group, 1, slot, rank, heap_bases, WORLD, MODE)
    for tile in range(part, rows_of_tiles * tiles_n, parts):
        group = tile // (rows_of_tiles * wide)
        columns_n = tl.minimum(wide, tiles_n - group * wide)
        expert, row, end, n = expert_tile(
            tile - group * rows_of_tiles * wide, blocks, offsets, columns_n, group_m, BLOCK_M
        )
        column = (group * wide + n) * BLOCK_N
        rows = rows_of(None, row, end, 1, BLOCK_M)
        acc = expert_product(
            a if A_TMA else a + rows * depth, row, depth, b, expert, column, H, stride_be, stride_bk, stride_bn,
            scale_a + rows * scales_per_row(depth, SCALES) if SCALES else None, scale_b, BLOCK_M, BLOCK_N, BLOCK_K,
            A_TMA, TMA, B_TRANSPOSED, False, EVEN_K, SWAP, SCALES, PROMOTE, PARTS,
        )  # fmt: skip
        if MODE == ONE_SHOT:
            send_tile_rows(
                acc, row_gates, pairs, inbox, row, end, T, H, K, column, epoch, rank, heap_bases, TYPE, LL,
                BLOCK_M, BLOCK_N,
            )  # fmt: skip
        else:
            store_expert_tile(acc, y, row, end, column, H, BLOCK_M, BLOCK_N, PLAIN, False)
        if not LL:
            finish_group(
                tickets, ready, arrivals, group, rows_of_tiles * columns_n, slot, rank, heap_bases, WORLD, MODE
            )  # fmt: skip


@triton.jit(do_not_specialize=["T", "group_m", "placing", "gemm_programs", "sending", "rank", "spin_limit"])
def gemm_combine_kernel(
    a, b, scale_a, scale_b, y, offsets, pairs, row_gates, ids, out, places, placed, inbox, tickets, ready, arrivals,
    done, T, H, K, local, depth, stride_be, stride_bk, stride_bn, group_m, placing, gemm_programs, sending, rank,
    heap_bases, epoch_counter, status, spin_limit, TYPE: tl.constexpr, WORLD: tl.constexpr, MODE: tl.constexpr,
    LL: tl.constexpr, ROTATE: tl.constexpr, GROUPS: tl.constexpr, STEP: tl.constexpr, TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr, SPLIT: tl.constexpr, CHOICES: tl.constexpr, EXPERTS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, A_TMA: tl.constexpr, TMA: tl.constexpr, B_TRANSPOSED: tl.constexpr,
    EVEN_K: tl.constexpr, SWAP: tl.constexpr, SCALES: tl.constexpr, PROMOTE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Out [T, H] = sums by token of the rows of A [capacity, depth] @ B [EXPERTS, depth, H] of all ranks times their
    gates.
    """
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    epoch = wide_epoch(epoch_counter)
    slot = (epoch & 1).to(tl.int32)
    first_sender = placing + gemm_programs
    adding = first_sender + sending
    wide = tl.cdiv(tl.cdiv(H, BLOCK_N), GROUPS) * BLOCK_N
    units = tl.cdiv(T, TOKENS) * SPLIT
    if pid < placing:
        place_rows(pairs, offsets, local, places, epoch, pid, placing, STEP)
        heap.signal(placed + slot, rank, rank, heap_bases)
    elif pid < first_sender:
        if LL:
            wait_for_all(done, epoch.to(tl.int32) - 1, status, spin_limit, WORLD)
        multiply_groups(
            a, b, scale_a, scale_b, y, offsets, pairs, row_gates, inbox, tickets, ready, arrivals, T, H, K, depth,
            stride_be, stride_bk, stride_bn, group_m, epoch, pid - placing, gemm_programs, rank, heap_bases, TYPE,
            WORLD, MODE, LL, GROUPS, EXPERTS, BLOCK_M, BLOCK_N, BLOCK_K, A_TMA, TMA, B_TRANSPOSED, EVEN_K, SWAP, SCALES,
            PROMOTE, PARTS,
        )  # fmt: skip
    elif pid < adding:
        if MODE != ONE_SHOT:
            wait_in_slot(placed + slot, epoch, placing, status, spin_limit)
            for group in range(GROUPS):
                late = heap.wait(ready + group, epoch.to(tl.int32) + 1, status, spin_limit)
                send_sums(
                    y, row_gates, places, inbox, arrivals + group * 2 * units, T, H, K, group * wide + late * BLOCK_N,
                    tl.minimum(H, (group + 1) * wide), epoch, pid - first_sender, sending, rank, heap_bases,
                    WORLD, MODE == PULL, ROTATE, TOKENS, COLUMNS, SPLIT, CHOICES,
                )  # fmt: skip
    elif MODE == ONE_SHOT:
        if not LL:
            wait_in_slot(arrivals + slot, epoch, WORLD, status, spin_limit)
        add_rows(
            out, ids, inbox, T, H, K, local * WORLD, epoch, pid - adding, programs - adding, status, spin_limit, TYPE,
            LL, TOKENS, COLUMNS, SPLIT, CHOICES,
        )  # fmt: skip
    else:
        for group in range(GROUPS):
            add_sums(
                out, ids, inbox, arrivals + group * 2 * units, T, H, K, local, group * wide,
                tl.minimum(H, (group + 1) * wide), epoch, pid - adding, programs - adding, rank, heap_bases, status,
                spin_limit, WORLD, MODE == PULL, TOKENS, COLUMNS, SPLIT, CHOICES,
            )  # fmt: skip
    in_vain = heap.timed_out(status)  # on its way while the launch is finished
    if finish(epoch_counter, programs):
        if LL:
            arrive(done, rank, heap_bases, WORLD)
    heap.seal_if(in_vain, out, tl.cast(T, tl.int64) * H)
