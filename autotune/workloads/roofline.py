"""Rooflines: a problem's lowest possible latency at the device's measured rates, and flash decode's predicted latency
per config, which orders the first trials and excludes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from autotune.db.records import Roofline
from autotune.device_rates import rates_of
from autotune.kernels.flash_decode.problem import FlashDecode
from autotune.problem import Problem
from autotune.task import Task

if TYPE_CHECKING:  # else whoever tunes would load the kernels
    from autotune.kernels.flash_decode.launch import FlashDecodeKnobs

WORK = {"flops": "flops", "memory": "bytes_read", "links": "bytes_moved"}
"""The problem's field with the work per resource; users' problems may lack it."""

RESIDENT = 2
"""Programs per compute unit at a time; of a latent cache, whose steps fill the shared memory, one."""

LATENT_IN_TURN = 1.8
"""Time of a latent's steps where all warps load and multiply in turn: with the reduction 324 µs in place of 175, 32
sequences of 16384 tokens, 64 heads, pages of one token and of 64 (H200, 2026-11-28).
"""

STEP_OVERHEAD = 0.25
"""Microseconds per step besides its loads: index arithmetic, the block table, the softmax."""

REDUCTION = 0.02
"""Microseconds to merge one program's part of a sequence."""

KERNELS = {"bsp": 4, "iris_all_gather": 3, "fine_grained_wait": 2, "fused": 1}


def roofline(problem: Problem, rates: Mapping[str, float]) -> Roofline | None:
    """The roofline from one device's rates per microsecond; None if rates or work are unknown."""
    work = {resource: getattr(problem, field, 0) for resource, field in WORK.items()}
    times = {resource: work[resource] / rate for resource, rate in rates.items() if work.get(resource)}
    return Roofline(dict(rates), times) if times else None


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
    slots = task.machine.compute_units * (1 if problem.rope else RESIDENT)
    busy = min(1.0, programs / slots)
    waves = math.ceil(programs / slots) / max(programs / slots, 1.0)
    memory = problem.bytes_read * math.sqrt(blocks) / rates.memory / max(busy, 0.05) * waves
    if problem.rope and knobs.loads == "pipelined":
        memory *= LATENT_IN_TURN
    attention = max(memory, math.ceil(steps / shares) * math.ceil(programs / slots) * STEP_OVERHEAD)
    parts = 1 + shares / problem.batch  # of a sequence
    trips = 2 if knobs.protocol == "signal" else 1
    exchange = problem.bytes_moved * (2 if knobs.protocol == "ll" else 1) / rates.links + rates.signal * trips / 2
    launched = KERNELS.get(knobs.mode, 1) + (knobs.reducer == "kernel")
    gap = rates.launch / 2 if knobs.launch == "graph" else rates.launch
    return attention + exchange + REDUCTION * parts + launched * gap
