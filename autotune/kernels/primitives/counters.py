"""Counters that only grow: ranks that have arrived or have read, programs that have finished the launch.

The epoch is the launch's number, from 0: counters that ranks share count in it, and are never reset, so that launches
follow each other without a host barrier and captured graphs can be replayed. Counters may wrap around.

``epoch_counter``, int64 [1], lies on the heap and holds the epoch in its upper bits, in the lower ones how many
programs have finished the launch; the last of them advances the epoch. After 2**35 launches it wraps around, and as
that is a multiple of 2**33, slots, and what counters are compared with, go on as if it did not.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap


@triton.jit
def arrive(ready, peers, WORLD: tl.constexpr):
    """Arrive at ``ready`` on every rank: what peers read from us in this launch is in place. One program calls it."""
    heap.signal_each(ready + peers.rank, peers, WORLD, 0)


@triton.jit
def wait_for_all(counters, target, peers, WORLD: tl.constexpr):
    """Wait until every rank's counter has reached ``target``: all are ready, have read, or have sent."""
    ranks = tl.arange(0, triton.next_power_of_2(WORLD))
    heap.wait_each(counters + ranks, ranks < WORLD, target, peers)


@triton.jit
def wait_in_slot(counter, epoch, signals, peers):
    """Wait for ``signals`` of this launch at a counter that every other launch uses: one slot of two.

    They count over all launches that have used the slot. Returns 1 where it timed out, else 0.
    """
    return heap.wait(counter, ((epoch >> 1) + 1) * signals, peers)


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


EPOCH_SHIFT = tl.constexpr(28)
EPOCH_STEP = tl.constexpr(1 << EPOCH_SHIFT.value)
"""A launch's programs together add 2**28 to ``epoch_counter``, and are fewer: with tiles of 16 x 32 a C of 2 x 10^10
elements has 40 million.
"""


@triton.jit
def read_epoch(epoch_counter):
    """The epoch for a program that has not finished yet: an int64, as it is halved where slots are used in turn."""
    return tl.load(epoch_counter) >> EPOCH_SHIFT


@triton.jit
def finish(epoch_counter, programs):
    """This program has finished its part of the launch; the last of ``programs`` advances the epoch.

    Returns whether we were the last. The last one has acquired what the others stored.
    """
    tl.debug_barrier()
    before = tl.atomic_add(epoch_counter, 1, sem="acq_rel", scope="gpu")
    last = (before & (EPOCH_STEP - 1)) == programs - 1
    if last:
        tl.atomic_add(epoch_counter, -programs + EPOCH_STEP, sem="release", scope="gpu")
    return last


@triton.jit
def finish_unordered(epoch_counter, programs, is_first, count=1):
    """``finish`` by one add, which orders nothing and waits for nothing; nobody learns who is last.

    For launches whose last program has nothing to do for all of them: they spare each the fence, and the wait for the
    answer. ``is_first`` is true for one of the ``programs``: it adds what the others leave to 2**28. A program may have
    done the parts of ``count``.
    """
    tl.debug_barrier()  # every thread has read the epoch before one adds
    count = tl.where(is_first, count - programs + EPOCH_STEP, count)
    tl.atomic_add(epoch_counter, count.to(tl.int64), sem="relaxed", scope="gpu")
