"""Fixtures of the report's tests: a store, and studies in it that a fake gang was tuned on."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
from fakes import EIGHT_GPUS, FakeGang, tune_over

from autotune.db import Entry, Store
from autotune.results.study import Study, finished
from autotune.tuning import Budget, Effort
from autotune.workloads import workload

EFFORT = Effort(trials=60, screen=3, iterations=9, finalists=3, rounds=2)


def tune_into(store: Store, trials: int = 40, drift: float = 1.0) -> Entry:
    found = workload("all_gather_gemm")
    gang = FakeGang(found.default_problem(EIGHT_GPUS, 8))
    gang.drift = drift
    return tune_over(gang, store, found, Budget(trials), EFFORT).entry


@pytest.fixture
def tuned(store: Store) -> Callable[..., Entry]:
    return functools.partial(tune_into, store)


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A study on eight GPUs; the same for all tests."""
    with Store.open(tmp_path_factory.mktemp("report") / "cache.db") as opened:
        return finished(opened, tune_into(opened), workload("all_gather_gemm"))
