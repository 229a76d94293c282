"""Signals to all ranks and waits for all ranks, in one instruction each rather than one after the other.

A release at system scope waits until the stores before it have arrived, an acquire for a round trip to memory: one
rank after the other would cost that many times as much, which is what a kernel of some microseconds cannot afford.
The protocol is that of ``heap/device.py``; only the counters are as many as there are ranks.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap


@triton.jit
def signal_everyone(counter, rank, heap_bases, WORLD: tl.constexpr):
    """Add one to ``counter`` in every rank's heap, ours included, after everything this program has stored."""
    tl.debug_barrier()
    lanes = tl.arange(0, triton.next_power_of_2(WORLD))
    peers = (rank + lanes) % WORLD
    heap.atomic_add(counter + lanes * 0, 1, rank, peers, heap_bases, mask=lanes < WORLD, sem="release", scope="sys")


@triton.jit
def most_behind(counters, stride, target, WORLD: tl.constexpr):
    """How far the slowest of ``counters[source * stride]`` is behind ``target``; they may wrap around."""
    lanes = tl.arange(0, triton.next_power_of_2(WORLD))
    reached = tl.atomic_add(counters + lanes * stride, 0, mask=lanes < WORLD, sem="acquire", scope="sys")
    return tl.max(tl.where(lanes < WORLD, target - reached, 0), axis=0)


@triton.jit
def wait_for_everyone(counters, stride, target, status, spin_limit, WORLD: tl.constexpr):
    """Poll ``counters[source * stride]`` in our own heap until all have reached ``target``, bounded as ``wait`` is.

    Returns 0, or 1 where it gave up.
    """
    spins = 0
    behind = most_behind(counters, stride, target, WORLD)
    while (behind > 0) & (spins < spin_limit):
        spins += 1
        if spins % 256 == 0:
            if tl.load(status, volatile=True) != 0:
                spins = spin_limit
        behind = most_behind(counters, stride, target, WORLD)
    late = (behind > 0).to(tl.int32)
    if late != 0:
        tl.atomic_xchg(status, 1)
    return late
