"""What kernels may do with the symmetric heap: Iris's device functions, and signals and bounded waits built on them.

The protocol, in one place. A producer stores data to a peer, then ``signal``s a counter in that peer's heap: a
barrier among the program's threads orders all their stores before one thread's release at system scope. A consumer
``wait``s on the counter in its own heap with an acquire at system scope, then reads. Data that it reads through TMA
(the async proxy) needs a proxy fence in between. A wait is bounded: after ``spin_limit`` polls it gives up and leaves a
mark in ``status``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap.loading import import_iris

iris = import_iris()

load = iris.load
store = iris.store
atomic_add = iris.atomic_add


@triton.jit
def signal(counter, peer, rank, heap_bases):
    """Add one to ``counter`` in ``peer``'s heap, after everything this program has stored."""
    tl.debug_barrier()
    iris.atomic_add(counter, 1, rank, peer, heap_bases, sem="release", scope="sys")


@triton.jit
def signal_all(counter, rank, heap_bases, WORLD: tl.constexpr):
    """Add one to ``counter`` in every rank's heap, our own too, after everything this program has stored.

    One thread for each rank: one wait for the stores and one way to the peers, where a loop of ``signal`` takes one of
    each after the other.
    """
    lanes = tl.arange(0, triton.next_power_of_2(WORLD))
    tl.debug_barrier()
    iris.atomic_add(
        counter + lanes * 0, 1, rank, (rank + lanes) % WORLD, heap_bases, mask=lanes < WORLD, sem="release", scope="sys"
    )


@triton.jit
def wait(counter, target, status, spin_limit):
    """Poll ``counter`` in our own heap until it has reached ``target``; returns 0, or 1 where it gave up.

    Counters only grow and may wrap around, hence the signed difference. Every 256 polls it looks whether another wait
    has given up already, so that a broken launch ends after one time-out and not after one for each of its waits.
    """
    spins = 0
    behind = target - tl.atomic_add(counter, 0, sem="acquire", scope="sys")
    while (behind > 0) & (spins < spin_limit):
        spins += 1
        if spins % 256 == 0:
            if tl.load(status, volatile=True) != 0:
                spins = spin_limit
        behind = target - tl.atomic_add(counter, 0, sem="acquire", scope="sys")
    late = (behind > 0).to(tl.int32)
    if late != 0:
        tl.atomic_xchg(status, 1)
    return late


@triton.jit
def fence_async_proxy(ENABLED: tl.constexpr):
    """Order generic-proxy accesses before TMA reads that follow; returns an int32 zero unknown to the compiler.

    Adding that zero to the coordinates of the loads to be ordered keeps the software pipeliner from hoisting them.
    ``ENABLED`` only on NVIDIA: elsewhere, and under the interpreter, there is no second proxy.
    """
    if ENABLED:
        zero = tl.inline_asm_elementwise(
            "fence.proxy.async; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
        )
    else:
        zero = 0
    return zero
