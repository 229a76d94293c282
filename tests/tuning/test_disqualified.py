"""What does not win: what failed once in the study, what the screen refuses, baselines that no caller gets."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest
from small_space import BEST, BSP, EVERYTHING, FINALS, TASK, WORKLOAD, Ranks, SmallWorkload, kept, run, time_of

from autotune.config import Config
from autotune.outcome import Evaluation, Outcome, Regime
from autotune.tuning import Progress
from autotune.tuning.screening import Screen


class Races(Ranks):
    """``BEST`` is wrong in its evaluation of that number, or in the proof; then the run is cut off."""

    def __init__(self, wrong_at: int | None) -> None:
        super().__init__(flaky={BEST} if wrong_at is None else set())
        self._wrong_at = wrong_at

    def evaluate(self, config: Config, seed: int, plan: object) -> Evaluation:
        if self.configs.count(BEST) == self._wrong_at:
            raise KeyboardInterrupt
        found = super().evaluate(config, seed, plan)
        wrong = config == BEST and self.configs.count(BEST) == self._wrong_at
        return Evaluation(Outcome.WRONG_RESULT, "planted") if wrong else found

    def prove(self, config: Config, seed: int, latency: float) -> Evaluation | None:
        if self.proved:
            raise KeyboardInterrupt
        return super().prove(config, seed, latency)


@pytest.mark.parametrize("wrong_at", [2, 3, None], ids=["finals", "second round", "proof"])
def test_what_was_wrong_before_an_interrupt_does_not_win_after_it(path: Path, wrong_at: int | None) -> None:
    """It goes right in every later call: a race that does not show."""
    stopped = run(path, Races(wrong_at), trials=1000)
    assert stopped.interrupted
    if wrong_at is None:
        assert stopped.progress.best is None, "what failed its proof is not the best so far"
    ranks = Ranks()
    finished = run(path, ranks, trials=1000)
    assert finished.entry is not None and finished.entry.winner.config != BEST
    assert finished.entry.winner.latency.median == min(time_of(config) for config in EVERYTHING - {BEST})
    assert BEST not in ranks.configs and len(ranks.calls) == FINALS


class Refusing(Screen):
    """Says of ``refused`` configs that their programs would wait for ones that find no room."""

    refused: ClassVar[set[Config]] = set()

    def verdict(self, config: Config, future: object) -> Evaluation | None:
        return Evaluation(Outcome.INVALID, "planted: starved") if config in self.refused else None


@pytest.mark.parametrize("role", ["default", "previous winner", "extra finalist"])
def test_what_the_screen_refuses_is_not_in_the_finals(path: Path, role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = WORKLOAD.default_config(TASK) if role == "default" else BEST
    if role == "previous winner":
        run(path, Ranks(), trials=1000)
    monkeypatch.setattr("small_space.Screen", Refusing)
    monkeypatch.setattr(Refusing, "refused", {config})
    ranks = Ranks(time=lambda each: 100.0 if each == config else time_of(each))
    extra = [BEST] if role == "extra finalist" else []
    result = run(path, ranks, trials=2, force=role == "previous winner", extra_finalists=extra)
    assert result.entry is not None and result.entry.winner.config != config
    assert config not in ranks.configs


@dataclass
class FailsOnce(Ranks):
    """These configs fail in the search, and are the fastest from then on."""

    once: dict[Config, Outcome] = field(default_factory=dict)

    def evaluate(self, config: Config, seed: int, plan: object) -> Evaluation:
        fails = config in self.once and config not in self.configs
        found = super().evaluate(config, seed, plan)
        return Evaluation(self.once[config], "planted") if fails else found


@pytest.mark.parametrize("outcome", [Outcome.TIMED_OUT, Outcome.CRASHED])
def test_a_default_that_hung_or_crashed_is_out_and_a_baseline_has_another_chance(path: Path, outcome: Outcome) -> None:
    default = WORKLOAD.default_config(TASK)
    ranks = FailsOnce(lambda each: {default: 100.0, BSP: 300.0}.get(each, 400.0), once={default: outcome, BSP: outcome})
    result = run(path, ranks, trials=1000)
    assert result.entry is not None and result.entry.winner.config == BSP
    assert ranks.configs.count(default) == 1


@pytest.mark.parametrize("incumbent", ["default", "previous winner", "baseline"])
def test_what_was_wrong_in_the_search_has_no_second_chance_in_the_finals(path: Path, incumbent: str) -> None:
    config = {"default": WORKLOAD.default_config(TASK), "previous winner": BEST, "baseline": BSP}[incumbent]
    again = incumbent == "previous winner"
    if again:
        run(path, Ranks(), trials=1000)
    times = {each: time_of(each) for each in EVERYTHING} | {config: 100.0}
    ranks = FailsOnce(times.__getitem__, once={config: Outcome.WRONG_RESULT})
    result = run(path, ranks, trials=1000, force=again)
    assert result.entry is not None and result.entry.winner.config != config
    assert ranks.configs.count(config) == 1


DEFAULT = WORKLOAD.default_config(TASK)


@pytest.fixture
def _captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The baseline, by far the fastest, is a graph: no caller gets it."""
    monkeypatch.setattr(
        SmallWorkload, "unlike_measured", lambda _, config, regime: "a graph" if config == BSP else None
    )


@pytest.mark.parametrize(
    ("regime", "isolated"), [(Regime.GRAPH, False), (Regime.PIPELINED, False), (Regime.ISOLATED, True)]
)
def test_ranks_compare_and_measure_in_the_regime(path: Path, regime: Regime, isolated: bool) -> None:
    ranks = Ranks()
    run(path, ranks, trials=5, regime=regime)
    plans = [plan for _, _, plan in ranks.calls]
    assert {plan.regime for plan in plans} == {regime}
    assert all((plan.isolated > 0) == isolated for plan in plans[:5]) and all(plan.isolated for plan in plans[5:])


@pytest.mark.usefixtures("_captured")
def test_a_baseline_that_nobody_gets_neither_wins_nor_drops_others_nor_takes_a_place(path: Path) -> None:
    ranks, best = Ranks(time=lambda config: 100.0 if config == BSP else time_of(config)), set[Config]()

    def watch(progress: Progress) -> None:
        if progress.best is not None:
            best.add(progress.best[0])

    result = run(path, ranks, trials=1000, watch=watch)
    assert result.entry is not None and result.entry.winner.config == BEST
    assert result.entry.winner.baselines["bsp"].median == 100.0
    assert ranks.proved == [BEST] and BEST in best and BSP not in best
    assert not any(100.0 in plan.incumbent for _, _, plan in ranks.calls)
    assert len(kept(path, finals=True)) == FINALS and ranks.configs.count(BSP) == 1 + 2


@pytest.mark.usefixtures("_captured")
def test_such_a_baseline_decides_nothing_between_the_others(path: Path) -> None:
    times = {BSP: 100.0, BEST: 198.4, DEFAULT: 200.0}
    run(path, Ranks(time=lambda config: times.get(config, 250.0)), trials=1000)
    finals = [trial.config for trial in kept(path, finals=True)]
    assert {config: finals.count(config) for config in times} == {BSP: 2, BEST: 4, DEFAULT: 4}


def test_captured_calls_are_not_searched_for_callers_who_do_not_capture(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlike(_: SmallWorkload, config: Config, regime: Regime) -> str | None:
        return "a graph" if config.get("tile") == 4 and regime is not Regime.GRAPH else None

    monkeypatch.setattr(SmallWorkload, "unlike_measured", unlike)
    for regime in (Regime.GRAPH, Regime.PIPELINED):
        ranks = Ranks()
        run(path, ranks, trials=1000, regime=regime)
        assert any(config.get("tile") == 4 for config in ranks.configs) == (regime is Regime.GRAPH)
