"""Launches of one program around others: the barrier of all ranks, the seal of a result, and empty ones."""

from __future__ import annotations

from typing import Any

import torch

from autotune.kernels.launching.contract import Call
from autotune.kernels.launching.plan import Launch
from autotune.kernels.primitives.barrier import barrier_kernel, seal_kernel
from autotune.kernels.primitives.probes import empty_kernel


def barrier_launch(call: Call[Any, Any, Any, Any], counters: torch.Tensor, *, finish: bool = False) -> Launch:
    """All ranks wait for each other, on the device; ``finish`` ends the epoch."""
    arguments = call.common() | {"counters": counters, "trace": None, "FINISH": finish}
    return Launch(barrier_kernel, 1, arguments, {"num_warps": 1})


def seal_launch(status: torch.Tensor, out: torch.Tensor) -> Launch:
    """Seal ``out``, contiguous, which the library writes last: see ``seal`` in ``heap/device.py``."""
    return Launch(seal_kernel, 1, {"status": status, "out": out, "elements": out.numel()}, {"num_warps": 1})


def empty_launches(count: int) -> list[Launch]:
    """Launches that do nothing, by which ``tune taxes`` learns what the boundary between two launches costs."""
    return [Launch(empty_kernel, 1, {}, {"num_warps": 1}) for _ in range(count)]
