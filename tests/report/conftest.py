"""Fixtures of the report's tests: a store, and studies in it that a fake gang was tuned on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.db import Entry, Store
from autotune.environment import Machine
from autotune.report import Report, build
from autotune.tuning import Budget, Effort, tune
from autotune.workloads import workload

sys.path.insert(0, str(Path(__file__).parent.parent))
from fakes import EIGHT_GPUS, FakeGang, FakeScreen

EFFORT = Effort(trials=60, screen=3, iterations=9, finalists=3, rounds=2)

Tuned = Callable[..., Entry]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An open, empty store."""
    with Store.open(tmp_path / "cache.db") as opened:
        yield opened


@pytest.fixture
def tuned(store: Store) -> Tuned:
    """Tunes all-gather + GEMM with the fake gang, into the store."""

    def run(machine: Machine = EIGHT_GPUS, trials: int = 40, world_size: int = 8, **fields: Any) -> Entry:
        found = workload("all_gather_gemm")
        default = found.default_problem(machine, world_size)
        problem = type(default).from_dict({**default.as_dict(), **fields})
        gang, screen = FakeGang(problem), FakeScreen(found, problem, machine)
        budget = Budget(trials)
        result = tune(found, problem, machine, store, gang, screen, budget=budget, effort=EFFORT)  # type: ignore[arg-type]
        assert result.entry is not None
        return result.entry

    return run


@pytest.fixture
def report(store: Store, tuned: Tuned) -> Report:
    """Of one study on eight GPUs."""
    return build(store, tuned(), workload("all_gather_gemm"))
