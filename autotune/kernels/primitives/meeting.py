"""All ranks meet on the device: the barrier that lines them up before a measurement or a pull."""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.kernels.primitives.counters import announce_ready, leave, wait_for_all


@triton.jit(do_not_specialize=["rank", "spin_limit"])
def meet_kernel(counters, state, rank, heap_bases, status, spin_limit, WORLD: tl.constexpr, LAST: tl.constexpr):
    """Signal everybody, wait for everybody. One program; ``counters`` int32 [world_size], ``state`` as in ``leave``.

    LAST closes the epoch; an earlier meeting in the same epoch uses other counters.
    """
    epoch = tl.load(state)
    announce_ready(counters, rank, heap_bases, WORLD)
    wait_for_all(counters, epoch + 1, status, spin_limit, WORLD)
    if LAST:
        leave(state, 1)
