"""A lost bias and a single lost k, at the depth that is tuned: the evaluation sees them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from autotune.config import Config
from autotune.kernels.gemm_reduce_scatter.problem import GemmReduceScatter
from autotune.machine import machine
from autotune.outcome import Outcome
from autotune.ranks import evaluation
from autotune.ranks.evaluation import MeasurePlan
from autotune.ranks.gang import Gang
from autotune.task import Task
from autotune.workloads import from_reference, workload
from autotune.workloads.built_in.gemm_reduce_scatter import GemmReduceScatterOperation, GemmReduceScatterWorkload
from autotune.workloads.interface import Run

LIBRARY = Config({"mode": "bsp", "launch": "eager"})


@pytest.mark.skipif(not machine().is_interpreter, reason="bsp needs a GPU for each rank")
@pytest.mark.parametrize("name", ["gemm_reduce_scatter", "Biasless", "Lastless"])
def test_what_little_is_lost_of_a_deep_product_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(evaluation.BURSTS, "interpreter", 1)
    found = workload(name) if name.islower() else from_reference(f"{__file__}:{name}")
    problem = found.problem_type(m=32, n=64, k=28672, world_size=2, bias=True)
    with Gang(found, Task(problem, machine())) as gang:
        ended = gang.evaluate(LIBRARY, 3, MeasurePlan(0, 1, 1))
    assert ended.outcome is (Outcome.MEASURED if name.islower() else Outcome.WRONG_RESULT), ended


class Losing(GemmReduceScatterOperation):
    """Takes the bias away again, or multiplies without the last column of A."""

    def prepare(self, config: Config) -> Run:
        run, tensors = super().prepare(config), self._tensors

        def losing() -> None:
            last = tensors.a[:, -1].clone()
            if self._problem.workload == "lastless":
                tensors.a[:, -1] = 0
            run()
            tensors.a[:, -1] = last
            if self._problem.workload == "biasless":
                tensors.c.sub_(tensors.bias)

        return losing


@dataclass(frozen=True, kw_only=True)
class BiaslessProblem(GemmReduceScatter):
    workload = "biasless"


@dataclass(frozen=True, kw_only=True)
class LastlessProblem(GemmReduceScatter):
    workload = "lastless"


class Biasless(GemmReduceScatterWorkload):
    name, problem_type, operation_type = "biasless", BiaslessProblem, Losing


class Lastless(GemmReduceScatterWorkload):
    name, problem_type, operation_type = "lastless", LastlessProblem, Losing
