"""Stamps of time that a traced twin of a kernel leaves behind; in the kernel itself there is nothing of them.

``trace`` is None in every kernel that is timed: Triton compiles no argument and no instruction for it. In the twin it
is int64 [programs, KINDS, MOST_EVENTS, 3]: begin, end and number of each event, zero where there was none. Events of a
kind have numbers from 0 in each program, and those from MOST_EVENTS on are left out. Times are this device's own: on
NVIDIA's nanoseconds, on AMD's 10 ns each, under the interpreter the host's nanoseconds.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.runtime.jit import constexpr_function

from autotune.heap.device import compiles_for_cuda, is_interpreted
from autotune.kernels.primitives import host_clock

SENT = tl.constexpr(0)
"""A unit on its way to its receivers; a tile, of which it is part of the work; a wait for others; one at a barrier."""
TILE = tl.constexpr(1)
WAIT = tl.constexpr(2)
PASSED = tl.constexpr(3)

KINDS = tl.constexpr(4)
MOST_EVENTS = tl.constexpr(64)


@triton.jit
def begin(trace, KIND: tl.constexpr, event, what):
    """This program's event number ``event`` of a kind begins; ``what`` it is about: the number of a tile, a unit."""
    if trace is not None:
        place = _place(trace, KIND, event)
        tl.store(place, now(), mask=event < MOST_EVENTS)
        tl.store(place + 2, tl.cast(what, tl.int64), mask=event < MOST_EVENTS)


@triton.jit
def end(trace, KIND: tl.constexpr, event):
    if trace is not None:
        tl.debug_barrier()  # all threads have done their part
        tl.store(_place(trace, KIND, event) + 1, now(), mask=event < MOST_EVENTS)


@triton.jit
def _place(trace, KIND: tl.constexpr, event):
    row = (tl.program_id(0) * KINDS + KIND) * MOST_EVENTS + event
    return trace + tl.cast(row, tl.int64) * 3


@triton.jit
def now():
    """This device's clock, int64."""
    if is_interpreted():
        time = tl.cast(_host_clock(), tl.int64)
    elif compiles_for_cuda():
        time = tl.inline_asm_elementwise(
            "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
        )  # fmt: skip
    else:
        time = tl.inline_asm_elementwise(
            "s_memrealtime $0\ns_waitcnt lgkmcnt(0)", "=s", [], dtype=tl.int64, is_pure=False, pack=1
        )  # fmt: skip
    return time


@constexpr_function
def _host_clock():
    """Under the interpreter: the host's nanoseconds, the same clock for all ranks."""
    return host_clock.CLOCK.now
