"""A kernel without work: the dose whose response is the cost of a launch."""

from __future__ import annotations

import triton


@triton.jit
def empty_kernel():
    pass
