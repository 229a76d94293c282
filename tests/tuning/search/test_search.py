"""The search on its own: where it looks, when one mode leads and another comes near."""

from __future__ import annotations

import functools
from collections import Counter

import pytest
from fakes import EIGHT_GPUS, latency_of, push_of

from autotune.config import Config
from autotune.outcome import Evaluation, Outcome
from autotune.recordings import tables
from autotune.recordings.file import read
from autotune.task import Task
from autotune.tuning.search import Search, proposer
from autotune.workloads import workload

FOUND = workload("all_gather_gemm")
PROBLEM = FOUND.problem_type(m=4096, n=28672, k=8192, world_size=8)
TRIALS = 40


def modes_tried(second: float) -> Counter[str]:
    """Proposals by mode. A push takes 100 µs and 5 more per step from the default, a staged pull ``factor`` times that;
    everything else takes 300.
    """
    default = push_of(Task(PROBLEM, EIGHT_GPUS))
    dimensions = FOUND.space.dimensions
    pulled = Config({d.name: default[d.name] for d in FOUND.space.dimensions_of("pull_staged")}).replace(
        mode="pull_staged"
    )
    search = Search(FOUND.space, Task(PROBLEM, EIGHT_GPUS), 0, [default, pulled], (), lambda config, evaluation: None)
    tried: Counter[str] = Counter()
    for _ in range(TRIALS):
        candidate = search.ask()
        config, mode = candidate.config, str(candidate.config["mode"])
        tried[mode] += 1
        apart = {
            name: [dimensions[name].index(c[name]) for c in (config, default)] for name in config if name in default
        }
        steps = sum(abs(mine - its) for name, (mine, its) in apart.items() if name != "mode")
        micros = {"push": 1.0, "pull_staged": second}.get(mode, 3.0) * (100.0 + 5.0 * steps)
        search.tell(candidate, Evaluation(Outcome.MEASURED, latency=latency_of(micros)))
    return tried


def test_a_mode_that_comes_near_is_searched_beside_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = modes_tried(1.03), modes_tried(1.1)
    monkeypatch.setattr(proposer, "NEAR_SHARE", 0.0)
    assert far == modes_tried(1.1), "what is farther off gets no share"
    assert near["push"] > near["pull_staged"] >= modes_tried(1.03)["pull_staged"] + 5


@pytest.mark.parametrize("table", ["ag-k-256", "ag-rows-256", "rs-2048"])
def test_a_search_ends_by_itself_near_the_optimum(table: str) -> None:
    recorded = read(tables.file_of(table))
    found = workload(recorded.workload)
    task, space = Task(recorded.problem_of(found), recorded.machine), recorded.space_of(found)
    first = [config for config in found.first_configs(task) if space.violation(config, task) is None]
    ignore, predict = lambda config, evaluation: None, functools.partial(found.predict, task)
    search = Search(space, task, 0, first, (), ignore, predict)
    latencies = []
    while (candidate := search.ask()) is not None:
        evaluation = recorded.evaluations.get(candidate.config, Evaluation(Outcome.INVALID, "not recorded"))
        search.tell(candidate, evaluation)
        latencies += [evaluation.latency.median] if evaluation.latency is not None else []
    assert search.is_settled
    assert len(latencies) < len(recorded.evaluations) / 4, "it ends long before it has tried everything"
    assert min(latencies) < 1.02 * recorded.optimum
