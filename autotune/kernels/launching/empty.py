"""Empty launches between two phases; ``tune taxes`` learns from them what the boundary between two launches costs."""

from __future__ import annotations

from autotune.kernels.launching.plan import Launch
from autotune.kernels.primitives.probes import empty_kernel


def empty_launches(count: int) -> list[Launch]:
    """``count`` launches of one program that does nothing."""
    return [Launch(empty_kernel, 1, {}, {"num_warps": 1}) for _ in range(count)]
