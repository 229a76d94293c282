"""Kernels that measuring launches beside ours: programs that take room on a device for a while, and an empty one."""

from __future__ import annotations

import triton

from autotune.kernels.primitives.trace import now

THREADS = 1024
"""Threads per program: half of what a multiprocessor holds."""


@triton.jit
def occupying_kernel(nanoseconds):
    """Spin for so long by the device's clock: a rank's kernels beside it are slow, and unevenly so."""
    begin = now()
    current = begin
    while current - begin < nanoseconds:
        current = now()


@triton.jit
def empty_kernel():
    pass
