"""The cost model of flash decode: the KV cache read by the programs there are, then partial results exchanged."""

from __future__ import annotations

import math

from autotune.config import Config
from autotune.kernels.flash_decode.problem import FlashDecode
from autotune.machine import Machine
from autotune.workloads.roofline.device_rates import rates_of

RESIDENT = 2
"""Programs on a compute unit at a time."""

STEP_OVERHEAD = 0.25
"""Microseconds of a step besides its loads: index arithmetic, the block table, the softmax."""

REDUCTION = 0.02
"""Microseconds to merge one split's partial result."""

KERNELS = {"bsp": 4, "iris_all_gather": 3, "fine_grained_wait": 2, "fused": 1}


def flash_decode_latency(problem: FlashDecode, config: Config, machine: Machine) -> float | None:
    """Predicted microseconds; None on a machine without known rates."""
    rates = rates_of(machine)
    if rates is None:
        return None
    splits, heads, block = (config.integer(name) for name in ("kv_splits", "heads_per_program", "block_n"))
    blocks = math.ceil(problem.group / heads)
    programs = problem.batch * problem.kv_heads * blocks * splits
    slots = machine.compute_units * RESIDENT
    busy = min(1.0, programs / slots)
    waves = math.ceil(programs / slots) / max(programs / slots, 1.0)
    memory = problem.bytes_read * math.sqrt(blocks) / rates.memory / max(busy, 0.05) * waves
    steps = math.ceil(problem.kv_len / splits / block) * math.ceil(programs / slots)
    attention = max(memory, steps * STEP_OVERHEAD)
    words = 2 if config.get("protocol") == "ll" else 1
    exchange = problem.bytes_moved * words / rates.links + rates.signal / words
    launched = KERNELS.get(str(config["mode"]), 1) + (config["reducer"] == "kernel")
    gap = rates.launch / 2 if config.get("launch") == "graph" else rates.launch
    return attention + exchange + REDUCTION * splits + launched * gap
