"""The loop: the budget it keeps, what it stores, what it does not measure twice, whom it crowns."""

from __future__ import annotations

import copy
import math
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import BASELINE, EIGHT_GPUS, FAILURES, LAPTOP, FakeGang, FakeScreen, formula, latency_of

from autotune.config import Config
from autotune.db import Store
from autotune.errors import InputError, InvalidBudget
from autotune.outcome import Evaluation, Latency, Outcome, Regime
from autotune.ranks.evaluation import LONG_CALL
from autotune.tuning import EFFORTS, Budget, Result, tune
from autotune.tuning.effort import LARGEST_SEED, MOST_TRIALS, limits_of, parse_duration
from autotune.tuning.finals import finals_plan, merge
from autotune.tuning.progress import Progress
from autotune.tuning.search import Search
from autotune.workloads import workload

FOUND = workload("all_gather_gemm")
PROBLEM = FOUND.problem_type(m=4096, n=28672, k=8192, world_size=8)


def run(store: Store, gang: FakeGang, trials: int = 30, seconds: float = math.inf, **options: Any) -> Result:
    """One tuning run on a fake 8-GPU machine."""
    screen: Any = FakeScreen(FOUND, PROBLEM, EIGHT_GPUS)
    budget = Budget(trials, seconds)
    return tune(FOUND, PROBLEM, EIGHT_GPUS, store, gang, screen, budget=budget, effort=EFFORTS["quick"], **options)


def searched(store: Store, study: int) -> list[Config]:
    """The configs evaluated by the search and as baselines, in order."""
    trials = store.trials(study)
    return [t.config for t in trials if t.source != "final" and t.evaluation.outcome is not Outcome.INVALID]


def test_it_gets_near_the_optimum_and_beats_the_baseline(tmp_path: Path) -> None:
    with Store.open(tmp_path / "cache.db") as store:
        result = run(store, FakeGang(PROBLEM), trials=60, seed=3)
    assert result.entry is not None
    found = result.entry.winner
    assert found.latency.median < 1.15 * 380.0 < BASELINE
    assert found.latency.median == pytest.approx(formula(found.config))
    assert set(found.baselines) == {"bsp eager", "bsp graph"} and set(found.limits) == {"all_gather", "gemm"}
    assert all(len(part.rounds) == len(found.latency.rounds) > 1 for part in found.limits.values()), "in turns"


def test_trials_are_counted_and_every_outcome_is_stored_with_its_reason(tmp_path: Path) -> None:
    class Fickle(FakeGang):
        def evaluate(self, config: Config, seed: int, plan: Any) -> Evaluation:
            outcomes = [None, *FAILURES]
            outcome = outcomes[len(self.calls) % len(outcomes)]
            found = super().evaluate(config, seed, plan)
            return Evaluation(outcome, "planted") if outcome is not None else found

    with Store.open(tmp_path / "cache.db") as store:
        result = run(store, Fickle(PROBLEM))
        trials = store.trials(result.study.id)
        configs = searched(store, result.study.id)
    assert len(configs) == 30 and max(Counter(configs).values()) == 1
    outcomes = Counter(trial.evaluation.outcome for trial in trials if trial.source != "final")
    assert outcomes == result.progress.outcomes
    assert set(outcomes) == set(Outcome)
    assert all(trial.evaluation.reason for trial in trials if trial.evaluation.outcome is not Outcome.MEASURED)
    for trial in trials:
        violation = FOUND.space.violation(trial.config, PROBLEM, EIGHT_GPUS)
        assert (violation is not None) == (trial.evaluation.outcome is Outcome.INVALID)


def test_what_the_ranks_did_with_the_time_is_told(tmp_path: Path) -> None:
    gang = FakeGang(PROBLEM)
    gang.seconds = 0.01
    with Store.open(tmp_path / "cache.db") as store:
        result = run(store, gang, trials=20)
    spent = result.progress.spent
    assert spent.trials == 20 - len(result.progress.baselines)
    assert spent.trials * gang.seconds <= spent.evaluating <= spent.total
    assert spent.evaluating + spent.compilers <= spent.total
    assert spent.rate == pytest.approx(60 * spent.trials / spent.total)


@pytest.mark.parametrize("regime", [Regime.GRAPH, Regime.PIPELINED])
def test_a_graph_of_the_library_s_calls_is_tried_only_for_callers_who_capture(tmp_path: Path, regime: Regime) -> None:
    """Flash decode's library way has tiles besides, so that the search would propose such graphs too."""
    found = workload("flash_decode")
    problem = found.default_problem(EIGHT_GPUS, 8)
    screen: Any = FakeScreen(found, problem, EIGHT_GPUS)
    with Store.open(tmp_path / "cache.db") as store:
        result = tune(
            found, problem, EIGHT_GPUS, store, FakeGang(problem), screen, budget=Budget(40), effort=EFFORTS["quick"],
            regime=regime,
        )  # fmt: skip
        trials = store.trials(result.study.id)
    captured = [t for t in trials if t.config["mode"] == "bsp" and t.config["launch"] == "graph"]
    tried = {t.config for t in captured if t.evaluation.outcome is not Outcome.INVALID}
    assert (len(tried) > 1) == (regime is Regime.GRAPH) and len(tried) >= 1, "the baseline is measured in any case"
    refused = {t.evaluation.reason for t in captured if t.evaluation.outcome is Outcome.INVALID}
    assert not refused or regime is Regime.PIPELINED and all("an operator makes" in reason for reason in refused)


class Timed(FakeGang):
    """A clock that only its calls move: a second per trial, twice that in the finals, 5 s to start the ranks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, trial: float) -> None:
        super().__init__(PROBLEM)
        self.now, self.trial = 0.0, trial
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def start(self) -> None:
        self.now += 5.0

    def evaluate(self, config: Config, seed: int, plan: Any) -> Evaluation:
        self.now += self.trial * (2 if plan.measured else 1)
        return replace(super().evaluate(config, seed, plan), seconds={"total": self.trial})

    def prove(self, config: Config, seed: int, latency: float) -> Evaluation | None:
        self.now += 2 * self.trial
        return None


@pytest.mark.parametrize("trial", [1.0, 2.0])
def test_a_time_budget_holds_search_finals_and_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trial: float
) -> None:
    gang, seen = Timed(monkeypatch, trial), list[Progress]()
    with Store.open(tmp_path / "cache.db") as store:
        result = run(store, gang, trials=10_000, seconds=60.0, watch=lambda progress: seen.append(copy.copy(progress)))
    assert result.entry is not None
    before = 5.0 + trial * len(result.progress.baselines)
    assert gang.now <= before + 60.0, "ranks and baselines come on top"
    assert len(searched(store, result.study.id)) >= 60.0 * 0.6 / trial - 1, "the search has its share"
    finals = [each for each in seen if each.phase == "finals" and each.finals[0]]
    assert [each.finals[0] for each in finals] == list(range(1, len(finals) + 1))
    assert all(each.seconds_left is not None and each.seconds_left <= before + 60.0 - each.seconds for each in finals)
    assert finals[0].used == 1.0 and all(each.finals == (0, 0) for each in seen if each.phase == "searching")


def test_an_interrupted_run_goes_on_where_it_stopped_and_measures_nothing_twice(tmp_path: Path) -> None:
    first, second = FakeGang(PROBLEM), FakeGang(PROBLEM)
    first.interrupt_after = 13
    with Store.open(tmp_path / "cache.db") as store:
        stopped = run(store, first)
        assert stopped.interrupted and stopped.entry is None and first.closed
        assert stopped.progress.best is not None
    with Store.open(tmp_path / "cache.db") as store:
        finished = run(store, second)
        assert finished.progress.resumed == 13 and finished.entry is not None
        configs = searched(store, finished.study.id)
    assert len(configs) == 30 and max(Counter(configs).values()) == 1
    assert not set(first.calls) & set(second.calls[: 30 - 13])


def test_a_bug_in_the_middle_loses_nothing_that_was_measured(tmp_path: Path) -> None:
    class Buggy(FakeGang):
        def evaluate(self, config: Config, seed: int, plan: Any) -> Evaluation:
            if len(self.calls) == 9:
                raise RuntimeError("planted")
            return super().evaluate(config, seed, plan)

    with Store.open(tmp_path / "cache.db") as store:
        buggy = Buggy(PROBLEM)
        with pytest.raises(RuntimeError, match="planted"):
            run(store, buggy)
        assert len(searched(store, store.studies()[0].id)) == 9
        assert run(store, FakeGang(PROBLEM)).progress.resumed == 9


def test_the_cache_answers_without_ranks_and_force_tunes_anew(tmp_path: Path) -> None:
    with Store.open(tmp_path / "cache.db") as store:
        first = run(store, FakeGang(PROBLEM), trials=10)
        idle = FakeGang(PROBLEM)
        again = run(store, idle, trials=10)
        assert again.from_cache and idle.started == 0 and again.entry == first.entry
        forced = run(store, FakeGang(PROBLEM), trials=12, force=True)
        assert forced.study.id != first.study.id and forced.entry is not None
        assert len(searched(store, first.study.id)) == 10, "what was measured is kept"


def test_winners_of_near_sizes_and_first_configs_take_turns(tmp_path: Path) -> None:
    """A search of few trials has seen both: winners of other sizes may be no good here."""
    near = replace(PROBLEM, m=2048)
    with Store.open(tmp_path / "cache.db") as store:
        before = run(store, FakeGang(PROBLEM), trials=40)
        screen: Any = FakeScreen(FOUND, near, EIGHT_GPUS)
        budget, effort = Budget(14), EFFORTS["quick"]
        after = tune(FOUND, near, EIGHT_GPUS, store, FakeGang(near), screen, budget=budget, effort=effort)
        tried = [config for config in searched(store, after.study.id) if config["mode"] != "bsp"]
    assert before.entry is not None
    own = FOUND.first_configs(near, EIGHT_GPUS)
    assert own[0] == FOUND.default_config(near, EIGHT_GPUS)
    assert tried[:3] == [own[0], own[1], before.entry.winner.config]
    assert set(own[:5]) <= set(tried)


def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    runs = []
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        gang = FakeGang(PROBLEM)
        with Store.open(tmp_path / name) as store:
            run(store, gang, trials=25, seed=seed)
        runs.append(gang.calls)
    assert runs[0] == runs[1] != runs[2]


def test_nothing_measurable_leaves_no_winner(tmp_path: Path) -> None:
    gang = FakeGang(PROBLEM)
    gang.broken = True
    with Store.open(tmp_path / "cache.db") as store:
        result = run(store, gang, trials=8)
        assert result.entry is None and not result.interrupted
        assert store.entries() == []


def test_the_search_never_proposes_what_it_knows() -> None:
    reserved = list(FOUND.baselines(PROBLEM, EIGHT_GPUS).values())
    search = Search(FOUND.space, PROBLEM, EIGHT_GPUS, 1, [], reserved, on_invalid=lambda config, evaluation: None)
    seen = set(reserved)
    for _ in range(50):
        candidate = search.ask()
        assert candidate is not None and candidate.config not in seen
        seen.add(candidate.config)
        search.tell(candidate, Evaluation(Outcome.MEASURED, latency=latency_of(formula(candidate.config))))


def test_another_mode_wins_that_keeps_its_pace_in_the_finals(tmp_path: Path) -> None:
    class Fading(FakeGang):
        """Pushes are the fastest until the finals; the copy engines come near, staged pulls do not."""

        def evaluate(self, config: Config, seed: int, plan: Any) -> Evaluation:
            super().evaluate(config, seed, plan)
            latency = {"push": 380.0, "copy_engine": 395.0, "pull_staged": 405.0}.get(str(config["mode"]), 600.0)
            slower = plan.screen == plan.iterations and config["mode"] == "push"
            return Evaluation(Outcome.MEASURED, latency=latency_of(latency * 1.06 if slower else latency))

    with Store.open(tmp_path / "cache.db") as store:
        result = run(store, Fading(PROBLEM))
        finals = [t.config["mode"] for t in store.trials(result.study.id) if t.source == "final"]
    assert result.entry is not None and result.entry.winner.config["mode"] == "copy_engine"
    assert finals.count("push") >= finals.count("copy_engine") > 0 and "pull_staged" not in finals


def test_a_finalist_runs_for_a_while_before_it_is_measured() -> None:
    plans = [finals_plan(30).for_calls_of(latency) for latency in (1.0, 50.0, 1500.0, 19e3, 1e6, 1e8)]
    assert [plan.warmup for plan in plans] == [400, 400, 40, 4, 3, 3]
    assert [plan.iterations for plan in plans] == [120, 120, 100, 30, 3, 3]
    assert all(plan.screen == plan.iterations for plan in plans), "none is dropped half-way"


def test_what_the_finals_measure_tells_by_itself_how_often_it_is_run(tmp_path: Path) -> None:
    class Planned(FakeGang):
        plans: list[Any] = []

        def evaluate(self, config: Config, seed: int, plan: Any) -> Evaluation:
            self.plans.append(plan)
            return super().evaluate(config, seed, plan)

        def measure_parts(self, plan: Any) -> dict[str, Latency]:
            self.plans.append(plan)
            return super().measure_parts(plan)

    with Store.open(tmp_path / "cache.db") as store:
        run(store, Planned(PROBLEM), trials=1)
    search, finals = ([plan for plan in Planned.plans if bool(plan.measured) is there] for there in (False, True))
    assert {plan.warm_from for plan in search} == {LONG_CALL}, "clocks that last, for calls of half a millisecond"
    assert len(finals) > 4 and set(finals) == {finals_plan(2 * EFFORTS["quick"].iterations)}
    assert finals[0].by_time


def test_where_power_matters_the_finals_are_wider(tmp_path: Path) -> None:
    def finalists(scale: float) -> int:
        class Slower(FakeGang):
            def evaluate(self, config: Config, seed: int, plan: Any) -> Evaluation:
                super().evaluate(config, seed, plan)
                return Evaluation(Outcome.MEASURED, latency=latency_of(scale * (500.0 + len(str(config)) % 5)))

        with Store.open(tmp_path / f"{scale}.db") as store:
            result = run(store, Slower(PROBLEM), trials=20)
            return len({t.config for t in store.trials(result.study.id) if t.source == "final"})

    assert finalists(2.0) > finalists(0.5)


def test_merging_takes_the_median_round() -> None:
    merged = merge([latency_of(100.0, host=5.0), latency_of(104.0, host=7.0), latency_of(90.0, host=6.0)])
    assert merged.median == 100.0 and merged.low <= 100.0 <= merged.high
    assert merged.rounds == (100.0, 104.0, 90.0) and merged.host_rounds == (5.0, 7.0, 6.0) and merged.host == 6.0
    assert merge([latency_of(1.0, host=5.0), latency_of(1.0)]).host_rounds == ()
    alone = merge([latency_of(1.0, isolated=isolated) for isolated in (9.0, 4.0, 8.0)])
    assert (alone.isolated, alone.isolated_rounds) == (8.0, (9.0, 4.0, 8.0))


def test_the_share_of_a_budget_that_is_used() -> None:
    assert Budget(10).used(5, 1e9, finals=1e9) == 0.5, "time does not count"
    timed = Budget(10, 100.0)
    assert timed.used(0, 40.0) == pytest.approx(0.5), "the finals have a fifth at least"
    assert timed.used(0, 35.0, finals=30.0) == pytest.approx(0.5)
    assert timed.used(0, 30.0, finals=1e3) == pytest.approx(0.5), "and two fifths at most"
    assert timed.used(9, 40.0) == 0.9 and timed.used(10, 1.0) == 1.0, "whichever is reached first"


def test_a_duration_alone_is_the_only_limit() -> None:
    effort = EFFORTS["quick"]
    assert Budget.of(effort) == Budget(effort.trials)
    assert Budget.of(effort, 7, "5m") == Budget(7, 300.0)
    assert Budget.of(effort, None, "5m") == Budget(MOST_TRIALS, 300.0)


def test_the_effort_is_the_machine_s_unless_given_and_what_nobody_can_use_is_refused() -> None:
    assert [limits_of(machine, None, None, None)[0] for machine in (LAPTOP, EIGHT_GPUS)] == ["quick", "standard"]
    assert limits_of(LAPTOP, "full", None, None, seed=LARGEST_SEED) == ("full", Budget(EFFORTS["full"].trials))
    with pytest.raises(InputError, match="seed 4294967296: allowed: 0 to 4294967295"):
        limits_of(LAPTOP, None, None, None, seed=LARGEST_SEED + 1)
    with pytest.raises(InvalidBudget, match="budget of 608400 s: allowed: 5s to 168h"):
        limits_of(LAPTOP, None, None, "169h")


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("5m", 300), ("1.5h", 5400)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "make",
    [
        lambda: parse_duration("soon"),
        lambda: parse_duration("5"),
        lambda: Budget(0),
        lambda: Budget(5, 0.1),
        lambda: parse_duration("9" * 400 + "s"),
    ],
)
def test_budgets_nobody_can_keep(make: Any) -> None:
    with pytest.raises(InvalidBudget):
        make()
