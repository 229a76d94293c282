"""The regime in the loop: requests to the ranks, and baselines that no caller in it gets as they were measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_space import (
    BEST,
    BSP,
    FINALS,
    TASK,
    WORKLOAD,
    Ranks,
    SmallWorkload,
    kept,
    run,
    time_of,
)

from autotune.config import Config
from autotune.outcome import Regime
from autotune.tuning import Progress

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
