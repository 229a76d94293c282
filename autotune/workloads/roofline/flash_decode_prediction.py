"""The cost model of flash decode: reading the KV cache, then exchanging partial results."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autotune.device_rates import rates_of
from autotune.kernels.flash_decode.problem import FlashDecode
from autotune.task import Task

if TYPE_CHECKING:  # else whoever tunes would load the kernels
    from autotune.kernels.flash_decode.launch import FlashDecodeKnobs

RESIDENT = 2
"""Programs per compute unit at a time."""

STEP_OVERHEAD = 0.25
"""Microseconds per step besides its loads: index arithmetic, the block table, the softmax."""

REDUCTION = 0.02
"""Microseconds to merge one program's part of a sequence."""

KERNELS = {"bsp": 4, "iris_all_gather": 3, "fine_grained_wait": 2, "fused": 1}


def flash_decode_latency(task: Task[FlashDecode], knobs: FlashDecodeKnobs) -> float | None:
    """Predicted microseconds; None on a machine without known rates."""
    problem = task.problem
    rates = rates_of(task.machine)
    if rates is None:
        return None
    blocks = math.ceil(problem.group / knobs.heads_per_program)
    steps = math.ceil(problem.cached_tokens / knobs.block_n) + problem.batch
    shares = min(knobs.programs_per_head, steps)
    programs = problem.kv_heads * blocks * shares
    slots = task.machine.compute_units * RESIDENT
    busy = min(1.0, programs / slots)
    waves = math.ceil(programs / slots) / max(programs / slots, 1.0)
    memory = problem.bytes_read * math.sqrt(blocks) / rates.memory / max(busy, 0.05) * waves
    attention = max(memory, math.ceil(steps / shares) * math.ceil(programs / slots) * STEP_OVERHEAD)
    parts = 1 + shares / problem.batch  # of a sequence
    trips = 2 if knobs.protocol == "signal" else 1
    exchange = problem.bytes_moved * (2 if knobs.protocol == "ll" else 1) / rates.links + rates.signal * trips / 2
    launched = KERNELS.get(knobs.mode, 1) + (knobs.reducer == "kernel")
    gap = rates.launch / 2 if knobs.launch == "graph" else rates.launch
    return attention + exchange + REDUCTION * parts + launched * gap
