"""A mixture's winner under other routings: what is measured, stored and refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from every_mode import RANKS, on_cpu
from fakes import EIGHT_GPUS, FakeGang, latency_of, tune_over

from autotune.config import Config
from autotune.db import Store
from autotune.outcome import Evaluation, HostOverhead, Outcome
from autotune.ranks import evaluation
from autotune.ranks.evaluation import MeasurePlan
from autotune.task import Task
from autotune.tuning import EFFORTS, Budget, Result
from autotune.tuning.routings import under_other_routings
from autotune.workloads import workload

FOUND = workload("moe_dispatch")
PROBLEM = FOUND.default_problem(EIGHT_GPUS, 8)
SKEWED = {"": 1.0, "zipf 1": 1.5, "one expert": 4.0}
OTHERS = {other: name for name, other in PROBLEM.other_routings().items()}


@dataclass
class Routed(FakeGang):
    """Slower under skew, our modes more so than the library; fails where it is told to."""

    fails: dict[tuple[str, str], Outcome] = field(default_factory=dict)
    """Outcomes by the names of a mode and a routing."""
    turns_of: list[tuple[str, Config]] = field(default_factory=list)
    """Evaluations under other routings: the routing's name and the config."""
    proved_under: list[Any] = field(default_factory=list)
    enqueued_in: Callable[[Config], float | None] = lambda config: None

    def __post_init__(self) -> None:
        super().__init__(PROBLEM)

    def prove(self, config: Config, seed: int, latency: float) -> Evaluation | None:
        self.proved_under.append(self.problems[-1])
        return super().prove(config, seed, latency)

    def evaluate(self, config: Config, seed: int, plan: Any) -> Evaluation:
        name, mode = OTHERS.get(self.problems[-1], ""), str(config["mode"])
        if name:
            self.turns_of.append((name, config))
        if (mode, name) in self.fails:
            return Evaluation(self.fails[mode, name], "planted")
        ours = {"push": 100.0 + config.integer("num_warps") if mode == "push" else 0.0, "pull": 107.0}
        library = 200.0 if config.get("launch") == "graph" else 230.0
        time = library if mode == "bsp" else ours[mode] * SKEWED[name]
        return Evaluation(
            Outcome.MEASURED, latency=latency_of(time, 8, self.enqueued_in(config)), seconds={"total": 1.0}
        )


def run(path: Path, gang: Routed, effort: str = "standard", seconds: float = math.inf) -> tuple[Result, Store]:
    store = Store.open(path / "cache.db")
    return tune_over(gang, store, FOUND, Budget(20, seconds), EFFORTS[effort]), store


def test_a_door_is_in_the_winner_s_times_under_each_routing_and_in_no_baseline_s(tmp_path: Path) -> None:
    gang = Routed(enqueued_in=lambda config: 50.0)
    gang.overhead = HostOverhead(host=9.0, isolated=14.0)
    result, store = run(tmp_path, gang)
    store.close()
    routings = result.entry.winner.routings.values()
    assert routings and all(each.latency.host == 59.0 for each in routings)
    assert all(latency.host == 50.0 for each in routings for latency in each.baselines.values())


def test_the_fastest_baseline_is_that_of_the_regime(tmp_path: Path) -> None:
    """A graph's replay costs the host more here than the library's own calls take on the device."""
    gang = Routed(enqueued_in=lambda config: 300.0 if config.get("launch") == "graph" else 9.0)
    result, store = run(tmp_path, gang)
    store.close()
    assert [set(each.baselines) for each in result.entry.winner.routings.values()] == [{"bsp eager"}] * 2


def test_the_winner_and_its_fastest_baseline_take_turns_under_each_routing(tmp_path: Path) -> None:
    gang = Routed()
    result, store = run(tmp_path, gang)
    winner = result.entry.winner
    assert winner.config["mode"] == "push" and list(winner.routings) == ["zipf 1", "one expert"]
    for name, routed in winner.routings.items():
        assert routed.latency.median == pytest.approx(winner.latency.median * SKEWED[name])
        assert {each: latency.median for each, latency in routed.baselines.items()} == {"bsp graph": 200.0}
        turns = [config["mode"] for routing, config in gang.turns_of if routing == name]
        assert turns == ["push", "bsp", "bsp", "push"] and len(routed.latency.rounds) == 2
    assert gang.problems[-1] == PROBLEM, "the ranks go on with the problem itself"
    kept = store.trials(result.study.id)
    assert all(each.evaluation.latency.median < 400.0 for each in kept if each.evaluation.latency is not None)
    assert store.entries() == [result.entry]


def test_a_winner_that_is_wrong_under_another_routing_is_refused_as_by_the_proof(tmp_path: Path) -> None:
    gang = Routed(fails={("push", "one expert"): Outcome.WRONG_RESULT})
    result, store = run(tmp_path, gang)
    assert result.entry is not None and result.entry.winner.config["mode"] == "pull"
    assert set(result.entry.winner.routings) == {"zipf 1", "one expert"}
    refused = [each for each in store.trials(result.study.id) if each.source == "proof"]
    assert refused and all(each.config["mode"] == "push" for each in refused)
    assert {(each.evaluation.outcome, each.evaluation.reason) for each in refused} == {
        (Outcome.WRONG_RESULT, "with other inputs, one expert: planted")
    }
    assert len(gang.proved_under) == len(refused) + 1 and set(gang.proved_under) == {PROBLEM}, "the next one, too"


@pytest.mark.parametrize(("effort", "seconds"), [("quick", math.inf), ("standard", 5.0)])
def test_with_little_effort_or_no_time_left_nothing_is_measured(tmp_path: Path, effort: str, seconds: float) -> None:
    """By the gang's word a measurement of the finals takes two seconds, so that four do not fit."""
    gang = Routed()
    result, _ = run(tmp_path, gang, effort, seconds)
    assert result.entry is not None and result.entry.winner.routings == {} and gang.turns_of == []


def test_ranks_draw_each_routing_and_results_are_compared_under_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the interpreter, the baseline and a push. Races have tests of their own."""
    here = on_cpu()
    monkeypatch.setitem(evaluation.LONGEST_STAGGER, "interpreter", 0.02)
    monkeypatch.setitem(evaluation.BURSTS, "interpreter", 1)
    problem = FOUND.problem_type(tokens=2, hidden=64, experts=4, top_k=1, world_size=2, routing="zipf", exponent=1.0)
    gang, _ = RANKS.turn_to(FOUND, problem)
    config, plan = FOUND.default_config(Task(problem, here)), MeasurePlan(0, 1, 1)
    baseline = FOUND.baselines(Task(problem, here))["bsp eager"]
    found = under_other_routings(
        gang, FOUND, problem, config, {"bsp eager": baseline}, 1,
        evaluate=lambda each, number: gang.evaluate(each, number, plan), no_time=lambda: False,
    )  # fmt: skip
    assert not isinstance(found, Evaluation), found.reason
    assert list(found) == ["uniform", "one expert"] and gang.problem == problem
    assert all(each.latency.by_rank and set(each.baselines) == {"bsp eager"} for each in found.values())
