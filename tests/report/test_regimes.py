"""A regime's verdict compares the times in that regime, of what was measured in it."""

from __future__ import annotations

from fakes import latency_of

from autotune.config import Config
from autotune.db import Winner
from autotune.outcome import Regime
from autotune.results.regimes import CAPTURE, called_alike, conclusion, verdicts

BASELINES = {
    "bsp graph": latency_of(90.0, host=95.0, isolated=300.0),
    "bsp eager": latency_of(110.0, host=120.0, isolated=180.0),
    "other": latency_of(100.0),
}


def test_each_regime_has_its_own_fastest_baseline() -> None:
    found = verdicts(Winner(Config({"mode": "push"}), latency_of(100.0, host=100.0, isolated=200.0), BASELINES))
    told = [(each.regime, each.baseline, each.winner_microseconds, each.baseline_microseconds) for each in found]
    assert told == [
        (Regime.GRAPH, "bsp graph", 100.0, 90.0),
        (Regime.PIPELINED, "bsp graph", 100.0, 95.0),
        (Regime.ISOLATED, "bsp eager", 200.0, 180.0),
    ]
    assert found[2].text.startswith("isolated: 0.90 ± 0.01 (by spread) times as fast as bsp eager")
    assert found[2].text.endswith(", slower (200.0 µs vs 180.0 µs)")
    only = {"other": latency_of(80.0), "bsp eager": BASELINES["bsp eager"]}
    isolated = verdicts(Winner(Config({"mode": "push"}), latency_of(100.0, isolated=200.0), only))
    assert [(each.regime, each.baseline) for each in isolated] == [
        (Regime.GRAPH, "other"), (Regime.ISOLATED, "bsp eager"),
    ], "what was not measured in a regime is not compared in it"  # fmt: skip


def test_only_a_graph_that_eager_callers_do_not_get_is_explained() -> None:
    def concluded(host: float, isolated: float) -> str:
        won = latency_of(100.0, host=host, isolated=isolated)
        return conclusion(verdicts(Winner(Config({"mode": "push"}), won, BASELINES)))

    assert (
        concluded(50.0, 150.0)
        == "The winner is slower in a graph than bsp graph and pipelined than bsp graph." + CAPTURE
    )
    device = latency_of(100.0)
    told = conclusion(verdicts(Winner(Config({"mode": "push"}), device, BASELINES)))
    assert told == "The winner is slower in a graph than bsp graph."
    assert conclusion(()) == ""


def test_callers_who_do_not_capture_do_not_get_a_captured_baseline() -> None:
    assert list(called_alike(BASELINES, Regime.GRAPH)) == list(BASELINES)
    assert list(called_alike(BASELINES, Regime.PIPELINED)) == ["bsp eager", "other"]
