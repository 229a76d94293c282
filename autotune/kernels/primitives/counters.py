"""Counters that only grow: ranks that are ready or done reading, programs that leave a launch.

Launch number ``epoch`` (from 0, kept on the heap in ``state``) is the unit that they count in: nothing is ever reset,
so that launches follow each other without a host barrier and captured graphs can be replayed. They may wrap around.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap


@triton.jit
def announce_ready(ready, rank, heap_bases, WORLD: tl.constexpr):
    """Tell every rank that what this launch reads from us is in place (one program of the launch calls it)."""
    for turn in range(WORLD):
        heap.signal(ready + rank, (rank + turn) % WORLD, rank, heap_bases)


@triton.jit
def wait_until_read(done, target, status, spin_limit, WORLD: tl.constexpr):
    """Wait until every rank has finished reading from us, so that our shard may be overwritten after the launch."""
    for reader in range(WORLD):
        heap.wait(done + reader, target, status, spin_limit)


@triton.jit
def enter(entries, programs):
    """Count this program into the launch and return the launch's number, from 0, int64: for kernels that need no end.

    ``entries``, int64 [1], grows by ``programs`` a launch and never wraps around: until the last program has come in,
    each finds the number of its launch in it. Nothing is left to do at the end of the launch, where it would cost time.
    """
    epoch = tl.load(entries) // programs
    tl.debug_barrier()  # every thread has looked before one counts
    tl.atomic_add(entries, 1, sem="relaxed", scope="gpu")
    return epoch


@triton.jit
def leave(state, programs):
    """Count this program out of the launch; the last one opens the next epoch. Returns whether we were the last.

    ``state`` is int32 [2]: the epoch, and how many of the launch's ``programs`` have left.
    """
    tl.debug_barrier()
    last = tl.atomic_add(state + 1, 1, sem="acq_rel", scope="gpu") == programs - 1
    if last:
        tl.atomic_xchg(state + 1, 0)
        tl.atomic_add(state, 1, sem="release", scope="gpu")
    return last
