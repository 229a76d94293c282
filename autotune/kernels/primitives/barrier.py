"""Kernels of one program around others: the barrier of all ranks, and the seal of a result."""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.primitives import trace as traces
from autotune.kernels.primitives.counters import arrive, finish, read_epoch, wait_for_all


@triton.jit(do_not_specialize=["rank", "spin_limit"])
def barrier_kernel(
    counters, epoch_counter, rank, heap_bases, status, spin_limit, trace, WORLD: tl.constexpr, FINISH: tl.constexpr,
    BY_STORES: tl.constexpr = False,
):  # fmt: skip
    """Arrive at every rank's counters, wait until all have. One program; ``counters`` is int32 [world_size].

    FINISH ends the epoch; an earlier barrier in the same epoch uses other counters. BY_STORES needs no atomics on a
    peer's memory, and orders nothing but the launches around it.
    """
    peers = heap.Peers(rank, heap_bases, status, spin_limit)
    epoch = read_epoch(epoch_counter)
    if BY_STORES:
        heap.store_each(counters + rank, (epoch + 1).to(tl.int32), peers, WORLD)
    else:
        arrive(counters, peers, WORLD)
    traces.begin(trace, traces.PASSED, 0, 0)
    wait_for_all(counters, epoch + 1, peers, WORLD)
    traces.end(trace, traces.PASSED, 0)
    if FINISH:
        finish(epoch_counter, tl.num_programs(0))


@triton.jit(do_not_specialize=["elements"])
def seal_kernel(status, out, elements):
    """The seal of a result that the library has written: see ``seal`` in ``heap/device.py``."""
    heap.seal(status, out, elements)
