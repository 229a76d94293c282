"""The loop, mostly over a space small enough to know everything about: budget, requests to the ranks, the store."""

from __future__ import annotations

import copy
import dataclasses
import math
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from every_mode import whole
from fakes import EIGHT_GPUS, LAPTOP, FakeGang, latency_of, tune_over
from small_space import (
    BEST,
    BSP,
    EFFORT,
    EVERYTHING,
    FINALS,
    PROBLEM,
    TASK,
    WORKLOAD,
    Ranks,
    SmallProblem,
    kept,
    run,
    time_of,
)

from autotune.config import Config
from autotune.db import CacheKey, Store, Winner
from autotune.errors import GangError, InputError, InvalidBudget
from autotune.outcome import DEFAULT_REGIME, Evaluation, Outcome
from autotune.ranks.evaluation import LONG_CALL
from autotune.runtime.lookup import lookup
from autotune.task import Task
from autotune.tuning import EFFORTS, Budget, Progress
from autotune.tuning.cached import cached
from autotune.tuning.effort import LARGEST_SEED, MOST_TRIALS, limits_of, parse_duration
from autotune.tuning.finals import PROOF, finals_plan
from autotune.workloads import provenance_of, workload


@pytest.mark.parametrize("seed", [0, whole(1), whole(2)])
def test_it_finds_the_optimum_of_a_small_space(path: Path, seed: int) -> None:
    ranks = Ranks()
    result = run(path, ranks, trials=30, seed=seed)
    assert result.entry is not None and result.entry.winner.config == BEST
    assert result.entry.winner.latency.median == 200.0
    assert len(result.entry.winner.limits["sum"].rounds) == EFFORT.rounds
    again = Ranks()
    run(path.with_name("again.db"), again, trials=30, seed=seed)
    assert again.calls[:30] == ranks.calls[:30], "the same seed gives the same search"


def test_it_ends_when_the_whole_space_is_known(path: Path) -> None:
    ranks = Ranks()
    result = run(path, ranks, trials=1000)
    searched = ranks.configs[: len(EVERYTHING)]
    assert set(searched) == EVERYTHING
    assert len(ranks.calls) == len(EVERYTHING) + FINALS
    assert result.progress.trials == len(EVERYTHING) and result.progress.exhausted and result.progress.used == 1


@pytest.mark.parametrize("flaky", [{BEST}, EVERYTHING], ids=["the best", "all"])
def test_a_winner_that_fails_its_proof_is_an_outcome_and_the_next_best_wins(path: Path, flaky: set[Config]) -> None:
    ranks = Ranks(flaky=flaky)
    result = run(path, ranks, trials=1000)
    failed = [trial for trial in kept(path) if trial.evaluation.outcome is Outcome.WRONG_RESULT]
    wrong = [config for config in ranks.proved if config in flaky]
    assert [(trial.config, trial.source) for trial in failed] == [(config, PROOF) for config in wrong] != []
    assert result.progress.outcomes[Outcome.MEASURED] == result.progress.trials, "a proof is not another trial"
    if flaky is EVERYTHING:
        assert result.entry is None
    else:
        assert result.entry is not None and result.entry.winner.config == ranks.proved[-1]
        assert result.entry.winner.latency.median == min(time_of(config) for config in EVERYTHING - flaky)


def test_what_is_slower_than_the_fastest_of_this_run_may_be_dropped(path: Path) -> None:
    ranks = Ranks(raises={20: KeyboardInterrupt})
    run(path, ranks, trials=30)
    assert ranks.calls[0][2].incumbent == (), "nothing to compare with yet"
    best = 300.0
    for config, _, plan in ranks.calls[1:]:
        assert plan.incumbent == (best,) * EFFORT.iterations
        best = min(best, time_of(config))
    continued = Ranks()
    run(path, continued, trials=30)
    assert continued.calls[0][2].incumbent == (), "of what was measured before an interrupt only medians are left"
    assert continued.calls[1][2].incumbent == (time_of(continued.configs[0]),) * EFFORT.iterations
    finals = continued.calls[10:]
    assert finals and all(plan.incumbent == () and plan.screen == plan.iterations for _, _, plan in finals)


def test_every_search_evaluation_has_inputs_of_its_own_and_a_final_round_the_same(path: Path) -> None:
    ranks = Ranks()
    run(path, ranks, seed=3)
    seeds = [seed for _, seed, _ in ranks.calls]
    assert len(set(seeds[:20])) == 20 and min(seeds) >= 30_000
    half = FINALS // 2
    assert {len(set(seeds[20 : 20 + half])), len(set(seeds[20 + half :]))} == {1}


def test_the_finals_measure_default_baseline_and_best_in_alternating_order(path: Path) -> None:
    ranks = Ranks()
    run(path, ranks, trials=30)
    finals = ranks.configs[30:]
    assert finals == [*finals[:4], *reversed(finals[:4])]
    assert {BSP, BEST, WORKLOAD.default_config(TASK)} < set(finals)
    assert [trial.number for trial in kept(path, finals=True)] == [0] * 4 + [1] * 4


@pytest.mark.parametrize("stop", [0, 9, 19])
@pytest.mark.parametrize("how", [KeyboardInterrupt, GangError])
def test_a_search_that_was_cut_off_measures_nothing_again(path: Path, stop: int, how: type[BaseException]) -> None:
    first, second = Ranks(raises={stop: how}), Ranks()
    if how is KeyboardInterrupt:
        stopped = run(path, first)
        assert stopped.interrupted and stopped.entry is None
    else:
        with pytest.raises(how, match="planted"):
            run(path, first)
    closed_here = ["close"] if how is KeyboardInterrupt else []  # in the middle of a request; else the caller closes
    assert first.log == ["start", *closed_here]
    assert [trial.config for trial in kept(path) if trial.evaluation.outcome is not Outcome.INVALID] == first.configs

    def watch(progress: Progress) -> None:
        assert not progress.waiting, "the first run has let go"

    finished = run(path, second, watch=watch)
    assert finished.entry is not None and not finished.interrupted and finished.progress.resumed == stop
    searched = [*first.configs, *second.configs[: 20 - stop]]
    assert searched[0] == BSP, "baselines come first"
    assert len(searched) == 20 and max(Counter(searched).values()) == 1
    assert len(second.calls) == 20 - stop + FINALS


@pytest.mark.parametrize("stop", [20, 23, 27])
def test_finals_that_were_cut_off_begin_anew_with_other_inputs_and_keep_the_old(path: Path, stop: int) -> None:
    slow, interrupts = lambda config: 1.03 * time_of(config), {stop: KeyboardInterrupt}
    first, second = Ranks(slow, raises=interrupts), Ranks()
    assert run(path, first).interrupted
    finished = run(path, second)
    assert finished.entry.winner.latency.rounds == (200.0,) * EFFORT.rounds, "of today alone"
    assert len(second.calls) == FINALS and len(kept(path, finals=True)) == stop - 20 + FINALS
    assert not {seed for _, seed, _ in first.calls[20:]} & {seed for _, seed, _ in second.calls}


@pytest.mark.parametrize("trial", [1.5, 2.0])
def test_a_time_budget_holds_search_finals_and_proof(path: Path, monkeypatch: pytest.MonkeyPatch, trial: float) -> None:
    """On a clock that only calls move: ``trial`` seconds for one, twice that in the finals, 5 s to start the ranks."""
    now = 0.0

    class Timed(Ranks):
        def start(self) -> None:
            nonlocal now
            now += 5.0

        def evaluate(self, config: Config, seed: int, plan: Any) -> Evaluation:
            nonlocal now
            now += trial * (2 if plan.measured else 1)
            return dataclasses.replace(super().evaluate(config, seed, plan), seconds={"total": trial})

        def prove(self, config: Config, seed: int, latency: float) -> Evaluation | None:
            nonlocal now
            now += 2 * trial
            return None

    monkeypatch.setattr(time, "monotonic", lambda: now)
    seen = list[Progress]()
    result = run(path, Timed(), budget=Budget(10_000, 60.0), watch=lambda progress: seen.append(copy.copy(progress)))
    assert result.entry is not None
    before = 5.0 + trial
    assert now <= before + 60.0, "ranks and baselines come on top"
    searched = [each for each in kept(path) if each.evaluation.outcome is not Outcome.INVALID]
    assert len(searched) >= 60.0 * 0.6 / trial - 1, "the search has its share"
    finals = [each for each in seen if each.phase == "finals" and each.finals[0]]
    assert [each.finals[0] for each in finals] == list(range(1, len(finals) + 1))
    assert all(each.seconds_left is not None and each.seconds_left <= before + 60.0 - each.seconds for each in finals)
    assert finals[0].used == 1.0 and all(each.finals == (0, 0) for each in seen if each.phase == "searching")


def test_every_outcome_is_stored_with_its_reason_and_the_time_of_the_ranks_is_told(path: Path) -> None:
    def slowly(config: Config) -> float:
        time.sleep(0.005)
        return time_of(config)

    failing = sorted(EVERYTHING - {BSP}, key=str)[: len(Outcome) - 2]
    outcomes = [outcome for outcome in Outcome if outcome not in (Outcome.MEASURED, Outcome.INVALID)]
    result = run(path, Ranks(slowly, fails=dict(zip(failing, outcomes, strict=True))), trials=1000)
    trials = [trial for trial in kept(path) if trial.source != PROOF]
    assert Counter(trial.evaluation.outcome for trial in trials) == result.progress.outcomes
    assert set(result.progress.outcomes) == set(Outcome)
    for trial in trials:
        violation = WORKLOAD.space.violation(trial.config, TASK)
        assert (violation is not None) == (trial.evaluation.outcome is Outcome.INVALID)
        assert trial.evaluation.reason or trial.evaluation.outcome is Outcome.MEASURED
    spent = result.progress.spent
    assert spent.trials == len(EVERYTHING) - 1 and spent.rate == pytest.approx(60 * spent.trials / spent.total)
    assert 0.005 * (spent.trials - len(failing)) <= spent.evaluating
    assert spent.compilers >= 0 and spent.evaluating + spent.compilers <= spent.total


@pytest.mark.parametrize(("scale", "finalists"), [(0.5, 4), (2.0, 6)])
def test_where_power_matters_the_finals_are_wider(path: Path, scale: float, finalists: int) -> None:
    run(path, Ranks(time=lambda config: scale * (500.0 + len(str(config)) % 5)), trials=1000)
    assert len({trial.config for trial in kept(path, finals=True)}) == finalists


def test_a_winner_that_the_space_refuses_is_tuned_anew(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As a database edited by hand holds one."""
    refused, key = Config({"mode": "push", "tile": 128, "unit": 64}), CacheKey.of(TASK)
    with Store.open(path) as store:
        study = store.study(key, provenance_of(WORKLOAD), seed=0, space_size=len(EVERYTHING))
        store.finish(study.id, Winner(refused, latency_of(1.0)))
        assert cached(store, WORKLOAD, TASK, DEFAULT_REGIME) is None
        assert lookup(WORKLOAD, PROBLEM, machine=LAPTOP, url=str(path)).source == "default"
    result = run(path, Ranks(), trials=1000)
    assert not result.from_cache and result.entry is not None and result.entry.winner.config == BEST
    assert "whole tiles" in caplog.text
    assert run(path, Ranks()).from_cache
    with Store.open(path) as store:
        assert cached(store, WORKLOAD, TASK, DEFAULT_REGIME) == result.entry


def test_force_measures_anew_and_keeps_what_was_measured(path: Path) -> None:
    old = run(path, Ranks())
    before = kept(path)
    ranks = Ranks(time=lambda config: 2 * time_of(config))
    new = run(path, ranks, force=True)
    assert new.study.id != old.study.id and new.progress.resumed == 0 and len(ranks.calls) == 20 + FINALS
    assert kept(path, study=old.study.id) == before
    assert new.entry.winner.latency.median == 2 * old.entry.winner.latency.median
    idle = Ranks()
    answered = run(path, idle, trials=500, seed=9)
    assert answered.from_cache and answered.entry == new.entry and idle.log == [] == idle.calls, "the newer one"
    for without in (Ranks(raises={5: KeyboardInterrupt}), Ranks(fails=dict.fromkeys(EVERYTHING, Outcome.CRASHED))):
        assert run(path, without, force=True).entry is None
        with Store.open(path) as store:
            assert store.entries("small") == [new.entry], "without a result the old winner stays"


def noisy(time: Callable[[Config], float]) -> Callable[[Config], float]:
    """Times that change by 0.5 % from call to call."""
    rng = random.Random(1)
    return lambda config: time(config) * math.exp(rng.gauss(0, 0.005))


@pytest.mark.parametrize(("gain", "stays"), [(0.0, True), (0.1, False)])
def test_the_last_winner_stays_unless_it_is_beaten_by_more_than_the_noise(
    path: Path, gain: float, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(path, Ranks(), trials=30).entry
    assert first is not None and first.winner.config == BEST
    stale = dataclasses.replace(first.provenance, triton="another version")
    monkeypatch.setattr("autotune.tuning.loop.provenance_of", lambda workload: stale)
    other = BEST.replace(tile=128)
    times = {BEST: 200.0, other: 200.0 * (1 - gain)}
    ranks = Ranks(time=noisy(lambda config: times.get(config, 400.0)))
    again = run(path, ranks, trials=1000).entry
    assert again is not None and again.provenance == stale
    assert again.winner.config == (BEST if stays else other)


@pytest.mark.parametrize("gain", [0.0, 0.1])
def test_no_winner_is_slower_than_the_baseline_and_noise_is_no_gain(path: Path, gain: float) -> None:
    result = run(path, Ranks(time=noisy(lambda config: 300.0 * (1 if config == BSP else 1 - gain))))
    winner = result.entry.winner
    assert winner.latency.median <= winner.baselines["bsp"].median
    assert (winner.config == BSP) == (gain < 0.05)


def test_a_baseline_that_fails_is_no_obstacle(path: Path) -> None:
    result = run(path, Ranks(fails={BSP: Outcome.CRASHED}), trials=30)
    assert result.entry is not None and result.entry.winner.config == BEST
    assert result.entry.winner.baselines == {} and result.progress.baseline is None


def test_an_extra_finalist_is_measured_in_every_round_of_the_finals(path: Path) -> None:
    slow = Config({"mode": "push", "tile": 256, "unit": 256})
    run(path, Ranks(), trials=5, extra_finalists=[slow, BSP])
    finals = kept(path, finals=True)
    assert [trial.number for trial in finals if trial.config == slow] == [0, 1]
    assert [trial.number for trial in finals if trial.config == BSP] == [0, 1], "none is measured twice"


def test_winners_of_near_sizes_and_first_configs_take_turns(path: Path) -> None:
    """A search of few trials has seen both: winners of other sizes may be no good here."""
    run(path, Ranks(), trials=30)
    ranks, near = Ranks(), SmallProblem(width=512, world_size=2)
    run(path, ranks, trials=14, problem=near)
    first = WORKLOAD.first_configs(Task(near, LAPTOP))
    assert ranks.configs[1] == first[0] == WORKLOAD.default_config(Task(near, LAPTOP))
    assert ranks.configs[:5].count(BEST) == 1 and set(first) <= set(ranks.configs[:5])


def test_another_mode_wins_that_keeps_its_pace_in_the_finals(path: Path) -> None:
    class Fading(FakeGang):
        """Pushes are the fastest until the finals; the copy engines come near, staged pulls do not."""

        def evaluate(self, config: Config, seed: int, plan: Any) -> Evaluation:
            super().evaluate(config, seed, plan)
            assert plan in finals_plans or plan.warm_from == LONG_CALL, (
                "clocks that last, for calls of half a millisecond"
            )
            latency = {"push": 380.0, "copy_engine": 395.0, "pull_staged": 405.0}.get(str(config["mode"]), 600.0)
            slower = plan.screen == plan.iterations and config["mode"] == "push"
            return Evaluation(Outcome.MEASURED, latency=latency_of(latency * 1.06 if slower else latency))

    finals_plans = {finals_plan(2 * EFFORTS["quick"].iterations)}
    found = workload("all_gather_gemm")
    problem = found.problem_type(m=4096, n=28672, k=8192, world_size=8)
    with Store.open(path) as store:
        result = tune_over(Fading(problem), store, found, Budget(30), EFFORTS["quick"])
        finals = [t.config["mode"] for t in store.trials(result.study.id) if t.source == "final"]
    assert result.entry is not None and result.entry.winner.config["mode"] == "copy_engine"
    assert finals.count("push") >= finals.count("copy_engine") > 0 and "pull_staged" not in finals


def test_limits_are_the_machine_s_unless_given_and_what_nobody_can_keep_is_refused() -> None:
    quick = EFFORTS["quick"]
    assert [parse_duration(text) for text in ("90s", "5m", "1.5h")] == [90, 300, 5400]
    budgets = [Budget.of(quick), Budget.of(quick, 7, "5m"), Budget.of(quick, None, "5m")]
    assert budgets == [Budget(quick.trials), Budget(7, 300.0), Budget(MOST_TRIALS, 300.0)]
    assert [limits_of(machine, None, None, None)[0] for machine in (LAPTOP, EIGHT_GPUS)] == ["quick", "standard"]
    with pytest.raises(InputError):
        limits_of(LAPTOP, None, None, None, seed=LARGEST_SEED + 1)
    for text in ("soon", "5", "9" * 400 + "s", "169h", "0.1s"):
        with pytest.raises(InvalidBudget):
            limits_of(LAPTOP, None, None, text)
    with pytest.raises(InvalidBudget):
        Budget(0)
