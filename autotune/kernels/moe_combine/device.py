"""Device code of the combine: one kernel, one launch. What it is made of lies in ``kernels/moe``.

Programs by their ids: those that place rows (not in ``one_shot``); those that send; those that add up. The first wait
for nothing, the others only for programs with lower ids, of their own rank or of others: no wait starves its producer.

Launch after launch. The inbox has two slots, used in turn; a rank that sends for launch e must know that every peer has
finished e - 2, the last to read the slot. It has finished e - 1 itself, and for that waited for signals of every peer,
sent in the peer's e - 1. By LL words it waits for those of its tokens' experts alone, so a rank says at the end of a
launch that it has read (``done``), and waits for that of the launch before last: long there, in general.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.moe.sums import Moves, Rows, Sums, add_rows, add_sums, place_rows, send_rows, send_sums
from autotune.kernels.primitives.counters import arrive, finish, read_epoch, wait_for_all, wait_in_slot
from autotune.kernels.primitives.known import known

PUSH = tl.constexpr(0)
PULL = tl.constexpr(1)
ONE_SHOT = tl.constexpr(2)


@triton.jit(do_not_specialize=["T", "placing", "sending", "rank", "spin_limit"])
def combine_kernel(
    rows, offsets, pairs, row_gates, ids, out, places, placed, inbox, arrivals, done, T, H, K, local, placing, sending,
    rank, heap_bases, epoch_counter, status, spin_limit, TYPE: tl.constexpr, WORLD: tl.constexpr, MODE: tl.constexpr,
    LL: tl.constexpr, ROTATE: tl.constexpr, STEP: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr,
    SPLIT: tl.constexpr, CHOICES: tl.constexpr,
):  # fmt: skip
    """Out [T, H] = sums by token of the rows [capacity, H] of all ranks, times their gates."""
    peers = heap.Peers(rank, heap_bases, status, spin_limit)
    placed_rows = Rows(rows, offsets, pairs, row_gates, places)
    sums = Sums(out, ids, T, H, K, local)
    FORM: tl.constexpr = known(Moves, TYPE, WORLD, MODE == PULL, LL, ROTATE, TOKENS, COLUMNS, SPLIT, CHOICES)
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    epoch = read_epoch(epoch_counter)
    slot = (epoch & 1).to(tl.int32)
    adding = placing + sending
    if pid < placing:
        place_rows(pairs, offsets, local, places, epoch, pid, placing, STEP)
        heap.signal(placed + slot, rank, peers)
    elif pid < adding:
        part = pid - placing
        if MODE == ONE_SHOT:
            if LL:
                wait_for_all(done, epoch - 1, peers, WORLD)
            send_rows(placed_rows, sums, inbox, epoch, part, sending, peers, FORM)
            if not LL:
                heap.signal_each(arrivals + slot, peers, WORLD, 0)
        else:
            wait_in_slot(placed + slot, epoch, placing, peers)
            send_sums(placed_rows, sums, inbox, arrivals, 0, H, epoch, part, sending, peers, FORM)
    elif MODE == ONE_SHOT:
        if not LL:
            wait_in_slot(arrivals + slot, epoch, WORLD * sending, peers)
        add_rows(sums, inbox, epoch, pid - adding, programs - adding, peers, FORM)
    else:
        add_sums(sums, inbox, arrivals, 0, H, epoch, pid - adding, programs - adding, peers, FORM)
    in_vain = heap.timed_out(status)  # on its way while the launch is finished
    if finish(epoch_counter, programs):
        if LL:
            arrive(done, peers, WORLD)
    heap.seal_if(in_vain, out, tl.cast(T, tl.int64) * H)


@triton.jit
def list_rows_kernel(pairs, end, places, ROWS: tl.constexpr):
    """Note each of the rows before ``end`` int32 [1] at its pair: ``places`` int32 [pairs of all tokens]."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    exists = row < tl.load(end)
    pair = tl.load(pairs + row, mask=exists, other=0)
    tl.store(places + pair, row, mask=exists)


@triton.jit(do_not_specialize=["blocks"])
def sum_rows_kernel(rows, places, gates, sums, columns, blocks, CHOICES: tl.constexpr, BLOCK: tl.constexpr):
    """Sums [tokens, columns] = rows [.., columns] of a token's ``places`` int32 [tokens, CHOICES], -1 for none, times
    the rows' gates, added in fp32 in that order; ``blocks`` programs for each token.
    """
    token = (tl.program_id(0) // blocks).to(tl.int64)
    column = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for choice in tl.static_range(CHOICES):
        row = tl.load(places + token * CHOICES + choice).to(tl.int64)
        gate = tl.load(gates + row, mask=row >= 0, other=0.0)
        value = tl.load(rows + row * columns + column, mask=(row >= 0) & (column < columns), other=0.0)
        acc += gate * value.to(tl.float32)
    tl.store(sums + token * columns + column, acc.to(sums.dtype.element_ty), mask=column < columns)
