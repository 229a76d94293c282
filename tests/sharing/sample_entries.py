"""Entries as the tuner makes them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from fakes import EIGHT_GPUS, push_of
from sample import BEST, SLOWER, WINNER

from autotune.db import CacheKey, Entry
from autotune.machine import Machine
from autotune.task import Task
from autotune.workloads import provenance_of, workload


def make_entry(machine: Machine = EIGHT_GPUS, median: float = 408.25, **fields: Any) -> Entry:
    """Of all-gather + GEMM with today's sources and versions; arguments are the problem's fields."""
    found = workload("all_gather_gemm")
    values = {"m": 4096, "n": 28672, "k": 8192, "world_size": 8, **fields}
    problem = found.problem_type.from_dict(values)
    task, by_rank = Task(problem, machine), (405.0, 1 / 3, *(400.0 + rank for rank in range(6)))[: problem.world_size]
    latency = replace(BEST, median=median, low=0.1 + 0.2, by_rank=by_rank, rounds=(408.0, 1e3 / 7))
    winner = replace(WINNER, config=push_of(task), latency=latency, limits={"gemm": SLOWER}, routings={})
    moment = datetime(2026, 3, 4, 5, 6, 7, 8, tzinfo=UTC)
    return Entry(CacheKey.of(task), provenance_of(found), winner, 7, moment, trials=250, seed=3, space_size=5832)
