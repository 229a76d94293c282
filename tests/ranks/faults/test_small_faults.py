"""A lost bias and a single lost k, at the depth that is tuned: the evaluation sees them."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.config import Config
from autotune.machine import machine
from autotune.outcome import Outcome
from autotune.ranks import evaluation
from autotune.ranks.evaluation import MeasurePlan
from autotune.ranks.gang import Gang
from autotune.task import Task
from autotune.workloads import from_reference, workload

FILE = Path(__file__).parent / "biasless_workload.py"
LIBRARY = Config({"mode": "bsp", "launch": "eager"})


@pytest.mark.skipif(not machine().is_interpreter, reason="bsp needs a GPU for each rank")
@pytest.mark.parametrize("name", ["gemm_reduce_scatter", "Biasless", "Lastless"])
def test_what_little_is_lost_of_a_deep_product_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(evaluation.BURSTS, "interpreter", 1)
    found = workload(name) if name.islower() else from_reference(f"{FILE}:{name}")
    problem = found.problem_type(m=32, n=64, k=28672, world_size=2, bias=True)
    with Gang(found, Task(problem, machine())) as gang:
        ended = gang.evaluate(LIBRARY, 3, MeasurePlan(0, 1, 1))
    assert ended.outcome is (Outcome.MEASURED if name.islower() else Outcome.WRONG_RESULT), ended
