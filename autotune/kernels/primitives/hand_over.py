"""Handing memory over from one call's scratch to another's, on the device: nobody uses it any more, all of it zero."""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.primitives.counters import arrive, finish, read_epoch, wait_for_all


@triton.jit
def _clear(memory, words, BLOCK: tl.constexpr):
    """Zero ``words`` int64, shared out over the programs."""
    for begin in range(tl.program_id(0) * BLOCK, words, tl.num_programs(0) * BLOCK):
        at = begin + tl.arange(0, BLOCK)
        tl.store(memory + at, tl.zeros((BLOCK,), dtype=tl.int64), mask=at < words)


@triton.jit(do_not_specialize=["place", "shared_words", "own_words", "rank", "spin_limit"])
def hand_over_kernel(
    holder, place, shared, shared_words, own, own_words, ready, done, rank, heap_bases, epoch_counter, status,
    spin_limit, WORLD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Zero the memory of ``place`` for the launches that follow, unless ``holder`` (int64 [1], this rank's alone) says
    that it was the last to use it. The ranks enqueue the same calls, so all of them clear, or none.

    When a rank is ``ready`` its earlier launches have ended, and with them their stores to peers. When all are, nothing
    is on its way to this memory. No rank goes on, and sends, before all are ``done`` with their zeros. Programs wait
    for nothing but peers' programs 0 before they clear, and for nothing but the last of each peer's afterwards.
    """
    peers = heap.Peers(rank, heap_bases, status, spin_limit)
    if tl.load(holder) != place:
        programs = tl.num_programs(0)
        epoch = read_epoch(epoch_counter)
        if tl.program_id(0) == 0:
            arrive(ready, peers, WORLD)
        wait_for_all(ready, epoch + 1, peers, WORLD)
        _clear(shared, shared_words, BLOCK)
        _clear(own, own_words, BLOCK)
        if finish(epoch_counter, programs):
            arrive(done, peers, WORLD)
            wait_for_all(done, epoch + 1, peers, WORLD)
            tl.store(holder, tl.cast(place, tl.int64))
