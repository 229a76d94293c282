"""Device functions on the symmetric heap: Iris's own, and signals and bounded waits built on them.

The protocol, in one place. A producer stores data to a peer, then ``signal``s a counter in that peer's heap: a
barrier among the program's threads orders all their stores before one thread's release at system scope. A consumer
``wait``s on the counter in its own heap with an acquire at system scope, then reads. Data that it reads through TMA
(the async proxy) needs a proxy fence in between. A wait is bounded: after ``spin_limit`` polls it times out and sets
bit 0 of ``status``; under the interpreter also once a peer's process has ended. There a poll takes a millisecond, in
which the core is another rank's.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton import knobs
from triton.language.target_info import is_cuda
from triton.runtime.jit import constexpr_function

from autotune.heap import peers
from autotune.heap.loading import import_iris

iris = import_iris()

load = iris.load
store = iris.store
atomic_add = iris.atomic_add


@triton.jit
def signal(counter, peer, rank, heap_bases, mask=None):
    """Add one to ``counter`` in ``peer``'s heap, after everything this program has stored; unless ``mask`` is false.

    A mask, for in a flattened loop there may be no branch that uses what was known before the inner loop.
    """
    tl.debug_barrier()
    iris.atomic_add(counter, 1, rank, peer, heap_bases, mask=mask, sem="release", scope="sys")


@triton.jit
def signal_each(counter, rank, heap_bases, WORLD: tl.constexpr, FIRST: tl.constexpr):
    """Add one to ``counter`` in every rank's heap, after everything this program has stored. FIRST is 1 to leave
    ourselves out, else 0.

    One atomic with a lane for each rank: one release after the other would each wait anew for what is on the links, a
    microsecond or two every time.
    """
    tl.debug_barrier()
    lanes = tl.arange(0, triton.next_power_of_2(WORLD))
    mask = (lanes >= FIRST) & (lanes < WORLD)
    peers = (rank + lanes) % WORLD
    iris.atomic_add(counter + lanes * 0, 1, rank, peers, heap_bases, mask=mask, sem="release", scope="sys")


@triton.jit
def wait(counter, target, status, spin_limit):
    """Poll ``counter`` in our own heap until it has reached ``target``; returns 0, or 1 where it timed out.

    Counters only grow and may wrap around, hence the signed difference. Every 256 polls it looks whether another wait
    has timed out already, so that a broken launch ends after one time-out and not after one for each of its waits.
    """
    spins = 0
    behind = target - tl.atomic_add(counter, 0, sem="acquire", scope="sys")
    while (behind > 0) & (spins < spin_limit):
        spins = next_spin(spins, status, spin_limit)
        behind = target - tl.atomic_add(counter, 0, sem="acquire", scope="sys")
    return _late(behind, status)


@triton.jit
def wait_each(counters, mask, target, status, spin_limit):
    """The same for a block of counters at once, those of ``mask``: one round trip for all of them, not one for each."""
    spins = 0
    behind = _furthest_behind(counters, mask, target)
    while (behind > 0) & (spins < spin_limit):
        spins = next_spin(spins, status, spin_limit)
        behind = _furthest_behind(counters, mask, target)
    tl.debug_barrier()  # a few threads have acquired; what they have seen is for all
    return _late(behind, status)


@triton.jit
def _furthest_behind(counters, mask, target):
    zeros = tl.zeros(counters.shape, dtype=tl.int32)
    reached = tl.atomic_add(counters, zeros, mask=mask, sem="acquire", scope="sys")
    return tl.max(tl.where(mask, target - reached, 0), axis=0)


@triton.jit
def next_spin(spins, status, spin_limit):
    """The number of polls that a wait has made, or ``spin_limit`` where it is in vain."""
    spins += 1
    if spins % 256 == 0:
        if (tl.load(status, volatile=True) & 1) != 0:  # a wait has timed out
            spins = spin_limit
    if is_interpreted():
        if peer_ends():
            spins = spin_limit
    return spins


@triton.jit
def _late(behind, status):
    late = (behind > 0).to(tl.int32)
    if late != 0:
        tl.atomic_or(status, 1)
    return late


@constexpr_function
def is_interpreted():
    """True under the interpreter, in the rank's own process."""
    return knobs.runtime.interpret


@constexpr_function
def peer_ends():
    """Under the interpreter: wait for a millisecond; true if a process that shares the heap has ended and will signal
    no more.
    """
    return peers.PEERS.end


@constexpr_function
def compiles_for_cuda():
    """True if this kernel is compiled for an NVIDIA GPU; never under the interpreter."""
    return not knobs.runtime.interpret and is_cuda()


@triton.jit
def fence_async_proxy(ENABLED: tl.constexpr):
    """Order generic-proxy accesses before TMA reads that follow; returns an int32 zero unknown to the compiler.

    Adding that zero to the coordinates of the loads to be ordered keeps the software pipeliner from hoisting them.
    ``ENABLED`` where the loads are TMA's; only NVIDIA GPUs have a second proxy.
    """
    if ENABLED and compiles_for_cuda():
        zero = tl.inline_asm_elementwise(
            "fence.proxy.async; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
        )
    else:
        zero = 0
    return zero
