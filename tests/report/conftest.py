"""Fixtures of the report's tests: a store with a study that the fake gang was tuned on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.db import Entry, Store
from autotune.environment import Machine
from autotune.tuning import Budget, Effort, tune
from autotune.workloads import workload

sys.path.insert(0, str(Path(__file__).parent.parent))
from fakes import EIGHT_GPUS, FakeGang, FakeScreen

QUICK = Effort(trials=60, screen=3, iterations=9, finalists=3, rounds=2)


def tuned(store: Store, machine: Machine = EIGHT_GPUS, trials: int = 60, world_size: int = 8, **fields: Any) -> Entry:
    """Tune all-gather + GEMM with the fake gang and return the entry."""
    found = workload("all_gather_gemm")
    default = found.default_problem(machine, world_size)
    problem = type(default).from_dict({**default.as_dict(), **fields})
    result = tune(
        found, problem, machine, store, FakeGang(problem), FakeScreen(found, problem, machine),  # type: ignore[arg-type]
        budget=Budget(trials), effort=QUICK,
    )  # fmt: skip
    assert result.entry is not None
    return result.entry


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An open, empty store."""
    with Store.open(tmp_path / "cache.db") as opened:
        yield opened
