"""Device functions on the symmetric heap: Iris's own (``remote`` without it), signals and bounded waits built on them.

The protocol, in one place. A producer stores data to a peer, then ``signal``s a counter in that peer's heap: a
barrier among the program's threads orders all their stores before one thread's release at system scope. A consumer
``wait``s on the counter in its own heap with an acquire at system scope, then reads. Data that it reads through TMA
(the async proxy) needs a proxy fence in between.

A wait may give up, a result may not lie. After ``spins`` polls a wait times out: it sets the first word of
``status`` on every rank, and the word that the ranks' hosts read; waits that are still polling then end, too. A program
ends with ``seal``, which fills its result with NaN where that word is set. What a rank sends after it has timed out may
be anything and may overwrite what a peer still reads; but its peers' words were set before, so they seal their results.

``status``, int64 [STATUS_WORDS + world_size], lies on the heap (``heap/status.py`` fills it): 1 once a wait has timed
out; bits of a workload's own faults; the number of addresses that follow; that of the hosts' word, and those of the
other ranks' first words. Without addresses, as in the tuner, whose gang ends together, a time-out stays with its rank.

Under the interpreter a wait also ends once a peer's process has ended, and a poll takes a millisecond, in which the
core is another rank's.
"""

from __future__ import annotations

from collections import namedtuple

import triton
import triton.language as tl
from triton import knobs
from triton.language.target_info import cuda_capability_geq, is_cuda, is_hip
from triton.runtime.jit import constexpr_function

from autotune.heap import patience, peers, remote
from autotune.heap.loading import iris_if_installed

iris = iris_if_installed() or remote

load = iris.load
store = iris.store
atomic_add = iris.atomic_add

QUICK_POLLS = tl.constexpr(patience.QUICK_POLLS)

MOST_TOLD = tl.constexpr(16)
"""Addresses to which a time-out can be told. 32 cost a kernel with 255 registers two spilled ones."""

SEALED_AT_ONCE = tl.constexpr(1024)
"""Elements that a program fills with NaN at once."""

Peers = namedtuple("Peers", "rank bases status spins", defaults=(None, None))
"""A kernel's view of the ranks, and the polls after which a wait times out. Made inside it: as an argument it would
be specialised for each rank.
"""


@triton.jit
def signal(counter, peer, peers, mask=None):
    """Add one to ``counter`` in ``peer``'s heap, after everything this program has stored; unless ``mask`` is false.

    A mask, for in a flattened loop there may be no branch that uses what was known before the inner loop.
    """
    tl.debug_barrier()
    iris.atomic_add(counter, 1, peers.rank, peer, peers.bases, mask=mask, sem="release", scope="sys")


@triton.jit
def signal_each(counter, peers, WORLD: tl.constexpr, FIRST: tl.constexpr):
    """Add one to ``counter`` in every rank's heap, after everything this program has stored. FIRST is 1 to leave
    ourselves out, else 0.

    One atomic with a lane for each rank: one release after the other would each wait anew for what is on the links, a
    microsecond or two every time.
    """
    tl.debug_barrier()
    lanes = tl.arange(0, triton.next_power_of_2(WORLD))
    mask = (lanes >= FIRST) & (lanes < WORLD)
    each = (peers.rank + lanes) % WORLD
    iris.atomic_add(counter + lanes * 0, 1, peers.rank, each, peers.bases, mask=mask, sem="release", scope="sys")


@triton.jit
def store_each(word, value, peers, WORLD: tl.constexpr):
    """Store ``value`` in every rank's ``word``, which no other program writes: a signal that is no atomic. It orders
    nothing that this launch has stored.
    """
    lanes = tl.arange(0, triton.next_power_of_2(WORLD))
    each = (peers.rank + lanes) % WORLD
    iris.store(word + lanes * 0, lanes * 0 + value, peers.rank, each, peers.bases, mask=lanes < WORLD)


@triton.jit
def wait(counter, target, peers):
    """Poll ``counter`` in our own heap until it has reached ``target``; returns 0, or 1 where it timed out.

    Counters only grow and may wrap around, hence the signed difference, to the lower half of a target that is an int64.
    """
    target = tl.cast(target, tl.int32)
    spins = 0
    behind = target - tl.atomic_add(counter, 0, sem="acquire", scope="sys")
    while (behind > 0) & (spins < peers.spins):
        spins = next_spin(spins, peers.status, peers.spins)
        behind = target - tl.atomic_add(counter, 0, sem="acquire", scope="sys")
    return _late(behind, peers.status)


@triton.jit
def wait_each(counters, mask, target, peers):
    """``wait`` for a block of counters at once, those of ``mask``: one round trip for all of them, not one for each."""
    target = tl.cast(target, tl.int32)
    spins = 0
    behind = _furthest_behind(counters, mask, target)
    while (behind > 0) & (spins < peers.spins):
        spins = next_spin(spins, peers.status, peers.spins)
        behind = _furthest_behind(counters, mask, target)
    tl.debug_barrier()  # a few threads have acquired; what they have seen is for all
    return _late(behind, peers.status)


@triton.jit
def _furthest_behind(counters, mask, target):
    zeros = tl.zeros(counters.shape, dtype=tl.int32)
    reached = tl.atomic_add(counters, zeros, mask=mask, sem="acquire", scope="sys")
    return tl.max(tl.where(mask, target - reached, 0), axis=0)


@triton.jit
def next_spin(spins, status, spin_limit):
    """The number of polls that a wait has made, or ``spin_limit`` where it is in vain.

    Every 256 polls it looks whether another wait has timed out, so that a broken launch ends after one time-out and not
    after one for each of its waits. The hosts' word is behind PCIe, and so is asked a hundredth as often, until the
    wait has become slow anyway.
    """
    spins += 1
    if spins % polls_between_looks(256) == 0:
        if tl.load(status, volatile=True) != 0:
            spins = spin_limit
        elif (spins % polls_between_looks(1 << 15) == 0) | (spins > QUICK_POLLS):
            if alarmed(status):
                spins = spin_limit
    if spins > QUICK_POLLS:
        pause()
    if is_interpreted():
        if peer_ends():
            spins = spin_limit
    return spins


@triton.jit
def alarmed(status):
    """True if a rank has told all hosts that its wait timed out, or that it will not come."""
    told = tl.load(status + 2) != 0
    if told:
        told = tl.load(tl.cast(tl.load(status + 3), tl.pointer_type(tl.int64)), volatile=True) != 0
    return told


@triton.jit
def pause():
    """Sleep for 20 to 40 microseconds: polls for minutes then cost no bandwidth and little power."""
    if compiles_for_cuda():
        tl.inline_asm_elementwise(
            "nanosleep.u32 20000; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
        )
    elif compiles_for_hip():
        tl.inline_asm_elementwise("s_sleep 127; v_mov_b32 $0, 0;", "=v", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def _late(behind, status):
    late = (behind > 0).to(tl.int32)
    if late != 0:
        time_out(status)
    return late


@triton.jit
def time_out(status):
    """This program's wait has timed out: tell this rank's programs, the other ranks, and all hosts.

    The atomic orders that before all that the program sends from here on.
    """
    lanes = tl.arange(0, MOST_TOLD)
    there = lanes < tl.load(status + 2)
    addresses = tl.load(status + 3 + lanes, mask=there, other=0)
    tl.store(tl.cast(addresses, tl.pointer_type(tl.int64)), 1, mask=there)
    tl.atomic_or(status, 1, sem="acq_rel", scope="sys")


@triton.jit
def timed_out(status):
    """True if a wait has timed out, on whatever rank. A program looks after its last wait."""
    return tl.load(status, volatile=True) != 0


@triton.jit
def seal(status, out, elements):
    """Fill ``out``, contiguous, with NaN if a wait has timed out, on whatever rank. The last thing that a program does.

    All of it, and each program that stores does: the last one to end comes after all stores. ``elements`` may be int64.
    """
    seal_if(timed_out(status), out, elements)


@triton.jit
def seal_if(in_vain, out, elements, also=None, BY_TMA: tl.constexpr = True):
    """``seal`` by an earlier look at the status, which was on its way while the program worked.

    ``also``: a second result, of as many elements. BY_TMA is false where the program stores nothing by TMA: of a launch
    of 5.8 µs that is 0.1 (2 x H100, 2026-11-26).
    """
    if in_vain:
        if BY_TMA:
            _await_own_tma_stores()
        _fill(out, also, float("nan"), elements)


@triton.jit
def clear_if(in_vain, out, elements):
    """``seal_if`` with zeros, for integers."""
    if in_vain:
        _fill(out, None, 0, elements)


@triton.jit
def _fill(out, also, value, elements):
    lanes = tl.arange(0, SEALED_AT_ONCE)
    values = tl.full((SEALED_AT_ONCE,), value, tl.float32)
    for begin in range(0, elements, SEALED_AT_ONCE):
        tl.store(out + begin + lanes, values.to(out.dtype.element_ty), mask=begin + lanes < elements)
        if also is not None:
            tl.store(also + begin + lanes, values.to(also.dtype.element_ty), mask=begin + lanes < elements)


@triton.jit
def _await_own_tma_stores():
    """Stores by TMA end after the program has gone on; they must not come after the NaN."""
    if has_tma():
        tl.inline_asm_elementwise(
            "cp.async.bulk.wait_group 0; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
        )
        tl.debug_barrier()


@constexpr_function
def polls_between_looks(on_gpu):
    """Polls after which a wait looks whether it is in vain; few under the interpreter, where each takes long."""
    return 16 if knobs.runtime.interpret else on_gpu


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


@constexpr_function
def compiles_for_hip():
    """True if this kernel is compiled for an AMD GPU; never under the interpreter."""
    return not knobs.runtime.interpret and is_hip()


@constexpr_function
def has_tma():
    """True if this kernel is compiled for an NVIDIA GPU with a tensor memory accelerator."""
    return not knobs.runtime.interpret and cuda_capability_geq(9, 0)


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
