"""The surrogate: what it expects of configs it has not seen, and which it would try next."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import pytest
from small_space import BSP, TASK, WORKLOAD, time_of

from autotune.config import Config
from autotune.search_spaces import Space, choices, numbers
from autotune.tuning.search import surrogate as surrogate_module
from autotune.tuning.search.surrogate import Surrogate

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
