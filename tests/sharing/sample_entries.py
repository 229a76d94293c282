"""Entries as the tuner makes them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fakes import EIGHT_GPUS, push_of

from autotune.db import CacheKey, Entry, Roofline, Winner
from autotune.machine import Machine
from autotune.outcome import Latency
from autotune.task import Task
from autotune.workloads import provenance_of, workload


def make_entry(machine: Machine = EIGHT_GPUS, median: float = 408.25, **fields: Any) -> Entry:
    """Of all-gather + GEMM with today's sources and versions; arguments are the problem's fields."""
    found = workload("all_gather_gemm")
    values = {"m": 4096, "n": 28672, "k": 8192, "world_size": 8, **fields}
    problem = found.problem_type.from_dict(values)
    by_rank = (405.0, 1 / 3, *(400.0 + rank for rank in range(6)))[: problem.world_size]
    latency = Latency(
        median, 0.1 + 0.2, 419.125, 3.5, 50, by_rank, host=17.5, isolated=431.0, rounds=(408.0, 1e3 / 7),
        host_rounds=(17.0, 18.0), isolated_rounds=(430.0, 432.0), host_overhead=6.5, isolated_overhead=9.0,
    )  # fmt: skip
    slower = Latency(530.0, 525.0, 540.0, 2.0, 50)
    return Entry(
        CacheKey.of(Task(problem, machine)),
        provenance_of(found),
        Winner(
            push_of(Task(problem, machine)),
            latency,
            {"graph": slower, "eager": slower},
            {"gemm": slower},
            Roofline({"flops": 7.5e8}, {"flops": 330.25}),
        ),
        study_id=7,
        finished_at=datetime(2026, 3, 4, 5, 6, 7, 8, tzinfo=UTC),
        trials=250,
        seed=3,
        space_size=5832,
    )
