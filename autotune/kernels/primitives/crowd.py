"""Programs that only take room on a device for a while: beside them a rank's kernels are slow, and unevenly so."""

from __future__ import annotations

import triton

from autotune.kernels.primitives.trace import now

THREADS = 1024
"""Threads per program: half of what a multiprocessor holds."""


@triton.jit
def crowd_kernel(nanoseconds):
    """Spin for so long by the device's clock."""
    begin = now()
    current = begin
    while current - begin < nanoseconds:
        current = now()
