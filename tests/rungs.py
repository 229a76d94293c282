"""Problems on which the rungs of ``tune taxes`` are tested under the interpreter."""

from __future__ import annotations

import re
from typing import Any

from autotune.machine import Machine
from autotune.task import Task
from autotune.workloads import workload

SMALL: dict[str, dict[str, Any]] = {
    "all_gather_gemm": {"m": 36, "n": 56, "k": 64, "bias": True, "b_order": "nk"},
    "gemm_reduce_scatter": {"m": 36, "n": 40, "k": 128, "bias": True},
    "gemm_all_reduce": {"m": 20, "n": 40, "k": 128, "bias": True},
    "flash_decode": {"batch": 2, "q_heads": 2, "kv_heads": 1, "head_dim": 64, "kv_len": 40, "dtype": "fp16"},
}  # fmt: skip
"""Tiles stand out of every dimension; there are several on each rank."""


def clock_reads(machine: Machine, name: str) -> list[int]:
    """In a process that compiles for the machine: the instructions that read a clock, without a trace and with it."""
    found = workload(name)
    problem = found.default_problem(machine, 2)
    firsts = found.first_configs(Task(problem, machine))
    config = next(each for each in firsts if each["mode"] in ("one_shot", "fused"))
    both = []
    for each in (config, config.replace(trace=True)):
        asm = found.kernels.offline(Task(problem, machine), each)[0].compile().asm
        both.append(len(re.findall("globaltimer;|s_memrealtime", asm.get("ptx") or asm["amdgcn"])))
    return both
