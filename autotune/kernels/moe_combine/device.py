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
from autotune.kernels.moe.sums import add_rows, add_sums, place_rows, send_rows, send_sums
from autotune.kernels.primitives.counters import arrive, finish, wait_for_all, wait_in_slot, wide_epoch

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
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    epoch = wide_epoch(epoch_counter)
    slot = (epoch & 1).to(tl.int32)
    adding = placing + sending
    if pid < placing:
        place_rows(pairs, offsets, local, places, epoch, pid, placing, STEP)
        heap.signal(placed + slot, rank, rank, heap_bases)
    elif pid < adding:
        part = pid - placing
        if MODE == ONE_SHOT:
            if LL:
                wait_for_all(done, epoch.to(tl.int32) - 1, status, spin_limit, WORLD)
            send_rows(
                rows, row_gates, pairs, offsets, inbox, T, H, K, local, epoch, part, sending, rank, heap_bases, TYPE,
                LL, COLUMNS, SPLIT,
            )  # fmt: skip
            if not LL:
                heap.signal_each(arrivals + slot, rank, heap_bases, WORLD, 0)
        else:
            wait_in_slot(placed + slot, epoch, placing, status, spin_limit)
            send_sums(
                rows, row_gates, places, inbox, arrivals, T, H, K, 0, H, epoch, part, sending, rank, heap_bases,
                WORLD, MODE == PULL, ROTATE, TOKENS, COLUMNS, SPLIT, CHOICES,
            )  # fmt: skip
    elif MODE == ONE_SHOT:
        if not LL:
            wait_in_slot(arrivals + slot, epoch, WORLD * sending, status, spin_limit)
        add_rows(
            out, ids, inbox, T, H, K, local * WORLD, epoch, pid - adding, programs - adding, status, spin_limit, TYPE,
            LL, TOKENS, COLUMNS, SPLIT, CHOICES,
        )  # fmt: skip
    else:
        add_sums(
            out, ids, inbox, arrivals, T, H, K, local, 0, H, epoch, pid - adding, programs - adding, rank, heap_bases,
            status, spin_limit, WORLD, MODE == PULL, TOKENS, COLUMNS, SPLIT, CHOICES,
        )  # fmt: skip
    in_vain = heap.timed_out(status)  # on its way while the launch is finished
    if finish(epoch_counter, programs):
        if LL:
            arrive(done, rank, heap_bases, WORLD)
    heap.seal_if(in_vain, out, tl.cast(T, tl.int64) * H)
