"""The search on its own: where it looks, when one mode leads and another comes near; and what its surrogate expects."""

from __future__ import annotations

import functools
import itertools
import math
import random
import statistics
from collections import Counter

import pytest
from fakes import EIGHT_GPUS, latency_of, push_of
from small_space import BSP, TASK, WORKLOAD, time_of

from autotune.config import Config
from autotune.outcome import Evaluation, Outcome
from autotune.recordings import tables
from autotune.recordings.file import read
from autotune.search_spaces import Space, choices, numbers
from autotune.task import Task
from autotune.tuning.search import Search, proposer
from autotune.tuning.search import surrogate as surrogate_module
from autotune.tuning.search.surrogate import Surrogate
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
    assert near["pull_staged"] >= modes_tried(1.03)["pull_staged"] + 5
    assert near["push"] > TRIALS / 4, "the fastest is searched all the same"


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


EVERYTHING = list(WORKLOAD.space.enumerate(TASK))
TIMES = {config: math.log(time_of(config)) for config in EVERYTHING}


def known(count: int, seed: int) -> dict[Config, float]:
    return {config: TIMES[config] for config in random.Random(seed).sample(EVERYTHING, count)}


def push(tile: int, unit: int) -> Config:
    return Config({"mode": "push", "tile": tile, "unit": unit})


def test_a_cost_model_is_taken_as_far_as_it_bears_out() -> None:
    """One that knows finds the best at once; one that says the reverse of the truth, or nothing, does no harm."""
    ranks: dict[str, list[int]] = {"right": [], "reverse": [], "silent": []}
    models = {"right": time_of, "reverse": lambda config: 1e4 / time_of(config), "silent": lambda config: None}
    for seed, (name, predict) in itertools.product(range(20), models.items()):
        measured = known(8, seed)
        rest = sorted(set(EVERYTHING) - set(measured), key=lambda config: TIMES[config])
        shuffled = random.Random(seed).sample(rest, len(rest))
        ranks[name].append(rest.index(Surrogate(WORKLOAD.space, predict).most_promising(shuffled, measured, [], [])))
    assert statistics.mean(ranks["right"]) < 0.5
    assert ranks["reverse"] == ranks["silent"] and statistics.mean(ranks["silent"]) < 8


def proposals_until_best(seed: int) -> int:
    """Of three dimensions only the first matters, and its best value is not among the 16 configs first measured."""
    powers = [2**i for i in range(6)]
    space = Space(choices("mode", "push"), *(numbers(name, *powers, modes=("push",)) for name in "abc"))
    draw = random.Random(seed)
    time_of_a = dict(zip(draw.sample(powers, 6), range(6), strict=True))
    times = {
        Config({"mode": "push", "a": a, "b": b, "c": c}): float(time_of_a[a])
        for a, b, c in itertools.product(powers, repeat=3)
    }
    shuffled = draw.sample(list(times), len(times))
    measured = {config: times[config] for config in [config for config in shuffled if times[config] > 0][:16]}
    surrogate = Surrogate(space)
    while 0 not in measured.values():
        unknown = [config for config in shuffled if config not in measured]
        chosen = surrogate.most_promising(unknown, measured, [], [])
        measured[chosen] = times[chosen]
    return len(measured) - 16


def test_dimensions_that_do_not_matter_stop_keeping_configs_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    learnt = [proposals_until_best(seed) for seed in range(20)]
    monkeypatch.setattr(surrogate_module, "RATE", 0.0)
    unlearnt = [proposals_until_best(seed) for seed in range(20)]
    assert statistics.mean(learnt) < 0.7 * statistics.mean(unlearnt), "12 and 23 when this was written"


def test_next_to_what_failed_and_to_what_is_pending_it_expects_less() -> None:
    measured = {push(16, 64): 5.0, BSP: 5.5}
    candidates = [push(8, 64), push(32, 64)]
    surrogate = Surrogate(WORKLOAD.space)
    assert surrogate.most_promising(candidates, measured, [push(4, 64)], []) == push(32, 64)
    assert surrogate.most_promising(candidates, measured, [push(64, 64)], []) == push(8, 64)
    assert surrogate.most_promising(candidates, measured, [], [push(4, 64)]) == push(32, 64)
    assert surrogate.most_promising(candidates, measured, [], [push(64, 64)]) == push(8, 64)
