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

from collections import namedtuple

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.moe import grouped_gemm as grouped
from autotune.kernels.moe.sums import Moves, Rows, Sums, add_rows, add_sums, place_rows, send_sums, send_tile_rows
from autotune.kernels.moe_combine.device import ONE_SHOT, PULL
from autotune.kernels.primitives.counters import arrive, finish, last_of, read_epoch, wait_for_all, wait_in_slot
from autotune.kernels.primitives.known import Gemm, known

Said = namedtuple("Said", "tickets ready arrivals")
"""Tiles of each group that are finished, and what says that all are: to this rank, or in ``one_shot`` to all."""


@triton.jit
def finish_group(said, group, tiles, slot, peers, WORLD: tl.constexpr, MODE: tl.constexpr):
    """Count a tile of a group of ``tiles`` as finished; the last says so: to this rank, or to all that have rows."""
    if last_of(said.tickets + group, tiles):
        if MODE == ONE_SHOT:
            heap.signal_each(said.arrivals + slot, peers, WORLD, 0)
        else:
            heap.signal(said.ready + group, peers.rank, peers)


@triton.jit
def multiply_groups(
    a, scale_a, experts, rows, sums, inbox, said, group_m, epoch, part, parts, peers, MODE: tl.constexpr,
    GROUPS: tl.constexpr, EXPERTS: tl.constexpr, MOVES: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """This part of ``parts`` of the tiles, group by group."""
    H, depth = experts.columns, experts.K
    slot = (epoch & 1).to(tl.int32)
    tiles_n = tl.cdiv(H, FORM.BLOCK_N)
    wide = tl.cdiv(tiles_n, GROUPS)
    blocks = grouped.row_blocks(rows.offsets, EXPERTS, FORM.BLOCK_M)
    rows_of_tiles = tl.max(blocks, axis=0)
    if not MOVES.LL:
        if (rows_of_tiles == 0) & (part == 0):  # there is nothing to do, and nobody else will say so
            for group in range(GROUPS):
                finish_group(said, group, 1, slot, peers, MOVES.WORLD, MODE)
    for tile in range(part, rows_of_tiles * tiles_n, parts):
        group = tile // (rows_of_tiles * wide)
        columns_n = tl.minimum(wide, tiles_n - group * wide)
        in_group = tile - group * rows_of_tiles * wide
        expert, row, end, n = grouped.expert_tile(in_group, blocks, rows.offsets, columns_n, group_m, FORM.BLOCK_M)
        column = (group * wide + n) * FORM.BLOCK_N
        places = grouped.rows_of(None, row, end, 1, FORM.BLOCK_M)
        scales = scale_a + places * grouped.scales_per_row(depth, FORM.SCALES) if FORM.SCALES else None
        start = a if FORM.A_TMA else a + places * depth
        acc = grouped.expert_product(start, row, scales, experts, expert, column, FORM)
        if MODE == ONE_SHOT:
            send_tile_rows(acc, rows, sums, inbox, row, end, column, epoch, peers, MOVES)
        else:
            grouped.store_expert_tile(acc, rows.data, row, end, column, H, FORM)
        if not MOVES.LL:
            finish_group(said, group, rows_of_tiles * columns_n, slot, peers, MOVES.WORLD, MODE)


@triton.jit(do_not_specialize=["T", "group_m", "placing", "gemm_programs", "sending", "rank", "spin_limit"])
def gemm_combine_kernel(
    a, b, scale_a, scale_b, bias, y, offsets, pairs, row_gates, ids, out, places, placed, inbox, tickets, ready,
    arrivals, done, T, H, K, local, depth, stride_be, stride_bk, stride_bn, group_m, placing, gemm_programs, sending,
    rank, heap_bases, epoch_counter, status, spin_limit, TYPE: tl.constexpr, WORLD: tl.constexpr, MODE: tl.constexpr,
    LL: tl.constexpr, ROTATE: tl.constexpr, GROUPS: tl.constexpr, STEP: tl.constexpr, TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr, SPLIT: tl.constexpr, CHOICES: tl.constexpr, EXPERTS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, A_TMA: tl.constexpr, TMA: tl.constexpr, B_TRANSPOSED: tl.constexpr,
    EVEN_K: tl.constexpr, SWAP: tl.constexpr, SCALES: tl.constexpr, PROMOTE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Out [T, H] = sums by token of the rows of A [capacity, depth] @ B [EXPERTS, depth, H] + bias [EXPERTS, H] (or
    None) of all ranks times their gates.
    """
    peers = heap.Peers(rank, heap_bases, status, spin_limit)
    rows = Rows(y, offsets, pairs, row_gates, places)
    sums = Sums(out, ids, T, H, K, local)
    experts = grouped.Experts(b, depth, H, stride_be, stride_bk, stride_bn, scale_b, bias)
    said = Said(tickets, ready, arrivals)
    MOVES: tl.constexpr = known(Moves, TYPE, WORLD, MODE == PULL, LL, ROTATE, TOKENS, COLUMNS, SPLIT, CHOICES)
    FORM: tl.constexpr = known(
        Gemm, BLOCK_M, BLOCK_N, BLOCK_K, TMA, B_TRANSPOSED, EVEN_K, SCALES, PROMOTE, 0, 0, SWAP, PARTS, A_TMA
    )
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    epoch = read_epoch(epoch_counter)
    slot = (epoch & 1).to(tl.int32)
    first_sender = placing + gemm_programs
    adding = first_sender + sending
    wide = tl.cdiv(tl.cdiv(H, BLOCK_N), GROUPS) * BLOCK_N
    units = tl.cdiv(T, TOKENS) * SPLIT
    if pid < placing:
        place_rows(pairs, offsets, local, places, epoch, pid, placing, STEP)
        heap.signal(placed + slot, rank, peers)
    elif pid < first_sender:
        if LL:
            wait_for_all(done, epoch - 1, peers, WORLD)
        multiply_groups(
            a, scale_a, experts, rows, sums, inbox, said, group_m, epoch, pid - placing, gemm_programs, peers, MODE,
            GROUPS, EXPERTS, MOVES, FORM,
        )  # fmt: skip
    elif pid < adding:
        if MODE != ONE_SHOT:
            wait_in_slot(placed + slot, epoch, placing, peers)
            for group in range(GROUPS):
                late = heap.wait(ready + group, epoch + 1, peers)
                begin, end = group * wide + late * BLOCK_N, tl.minimum(H, (group + 1) * wide)
                arrived = arrivals + group * 2 * units
                send_sums(rows, sums, inbox, arrived, begin, end, epoch, pid - first_sender, sending, peers, MOVES)
    elif MODE == ONE_SHOT:
        if not LL:
            wait_in_slot(arrivals + slot, epoch, WORLD, peers)
        add_rows(sums, inbox, epoch, pid - adding, programs - adding, peers, MOVES)
    else:
        for group in range(GROUPS):
            begin, end = group * wide, tl.minimum(H, (group + 1) * wide)
            arrived = arrivals + group * 2 * units
            add_sums(sums, inbox, arrived, begin, end, epoch, pid - adding, programs - adding, peers, MOVES)
    in_vain = heap.timed_out(status)  # on its way while the launch is finished
    if finish(epoch_counter, programs):
        if LL:
            arrive(done, peers, WORLD)
    heap.seal_if(in_vain, out, tl.cast(T, tl.int64) * H)
