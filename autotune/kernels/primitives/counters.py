"""Counters that only grow: ranks that have arrived or have read, programs that have finished the launch.

The epoch is the launch's number, from 0: counters count in it, and nothing is ever reset, so that launches follow each
other without a host barrier and captured graphs can be replayed. Counters may wrap around.

``epoch_counter`` lies on the heap, and the last program to finish a launch advances it. It has two forms. In int32 [2],
the epoch and how many programs have finished, ``finish`` tells the last program so. In int64 [1], one word with both,
a program finishes by a single add (``wide_epoch``, ``finish_wide``): for launches of a few microseconds.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap


@triton.jit
def arrive(ready, rank, heap_bases, WORLD: tl.constexpr):
    """Arrive at ``ready`` on every rank: what peers read from us in this launch is in place. One program calls it."""
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


@triton.jit
def finish(epoch_counter, programs):
    """This program has finished its part of the launch; the last of ``programs`` advances the epoch.

    Returns whether we were the last. ``epoch_counter`` is int32 [2]: the epoch, and how many programs have finished.
    """
    last = last_of(epoch_counter + 1, programs)
    if last:
        tl.atomic_add(epoch_counter, 1, sem="release", scope="gpu")
    return last


@triton.jit
def finish_unordered(epoch_counter, programs):
    """``finish`` for a program that has delivered, to be called while its data is on the way.

    It orders nothing, and so waits for nothing: all threads have used the epoch to deliver, and only later launches
    will look at ``epoch_counter``.
    """
    tl.debug_barrier()
    if tl.atomic_add(epoch_counter + 1, 1, sem="relaxed", scope="gpu") == programs - 1:
        tl.atomic_xchg(epoch_counter + 1, 0, sem="relaxed", scope="gpu")
        tl.atomic_add(epoch_counter, 1, sem="relaxed", scope="gpu")


EPOCH_SHIFT = tl.constexpr(22)
EPOCH_STEP = tl.constexpr(1 << EPOCH_SHIFT.value)
"""A launch's programs together add 2**22 to the int64 ``epoch_counter``, and are never more."""


@triton.jit
def wide_epoch(epoch_counter):
    """The epoch, int64, for a program that has not finished yet (see ``finish_wide``).

    ``epoch_counter``, int64 [1], holds it in its upper bits, which change when the last program finishes. In years of
    use it does not wrap around.
    """
    return tl.load(epoch_counter) >> EPOCH_SHIFT


@triton.jit
def finish_wide(epoch_counter, programs):
    """This program has finished its part of the launch: one add, which waits for nothing; nobody learns who is last."""
    tl.debug_barrier()  # every thread has read the epoch before one adds
    count = tl.where(tl.program_id(0) == 0, 1 - programs + EPOCH_STEP, 1)
    tl.atomic_add(epoch_counter, count.to(tl.int64), sem="relaxed", scope="gpu")
