"""Counters that only grow: ranks that are ready or done reading, programs that leave a launch.

Launch number ``epoch`` (from 0, kept on the heap in ``epoch_counter``) is the unit that they count in: nothing is ever reset,
so that launches follow each other without a host barrier and captured graphs can be replayed. They may wrap around.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap


@triton.jit
def arrive(ready, rank, heap_bases, WORLD: tl.constexpr):
    """Tell every rank that what this launch reads from us is in place (one program of the launch calls it)."""
    heap.signal_each(ready + rank, rank, heap_bases, WORLD, 0)


@triton.jit
def wait_for_all(counters, target, status, spin_limit, WORLD: tl.constexpr):
    """Wait until every rank's counter has reached ``target``: all are ready, have read, or have sent."""
    ranks = tl.arange(0, triton.next_power_of_2(WORLD))
    heap.wait_each(counters + ranks, ranks < WORLD, target, status, spin_limit)


@triton.jit
def last_of(counter, programs):
    """Count this program out of ``programs``; the last one leaves zero behind. Returns whether we were the last.

    The last one has acquired what the others stored: what it then releases covers their stores too.
    """
    tl.debug_barrier()
    last = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == programs - 1
    if last:
        tl.atomic_xchg(counter, 0)
    return last


EPOCH_SHIFT = tl.constexpr(22)
EPOCH_STEP = tl.constexpr(1 << EPOCH_SHIFT.value)
"""A launch's programs together add 2**22 to ``epoch_counter``, and there are at most so many of them."""


@triton.jit
def wide_epoch(epoch_counter):
    """The launch's number, from 0, int64, for a program that has not counted itself out yet (see ``finish_wide``).

    ``epoch_counter``, int64 [1], holds it in its upper bits, which change when the last program counts itself out. In years
    of use it does not wrap around.
    """
    return tl.load(epoch_counter) >> EPOCH_SHIFT


@triton.jit
def finish_wide(epoch_counter, programs):
    """Count this program out of the launch. Unlike ``finish`` it waits for nothing, and nobody learns who was last."""
    tl.debug_barrier()  # every thread has asked for the number before one counts
    count = tl.where(tl.program_id(0) == 0, 1 - programs + EPOCH_STEP, 1)
    tl.atomic_add(epoch_counter, count.to(tl.int64), sem="relaxed", scope="gpu")


@triton.jit
def finish(epoch_counter, programs):
    """Count this program out of the launch; the last one opens the next epoch. Returns whether we were the last.

    ``epoch_counter`` is int32 [2]: the epoch, and how many of the launch's ``programs`` have left.
    """
    last = last_of(epoch_counter + 1, programs)
    if last:
        tl.atomic_add(epoch_counter, 1, sem="release", scope="gpu")
    return last
