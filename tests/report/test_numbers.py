"""The page's numbers are those of the regime tuned for, and of the study that it tells of."""

from __future__ import annotations

import dataclasses
import math
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from fakes import latency_of
from sized_studies import of_size, won

from autotune.config import Config
from autotune.db import CacheKey, Provenance, Store, TrialRecord
from autotune.machine import INTERPRETER
from autotune.outcome import Evaluation, HostOverhead, Latency, Outcome, Regime
from autotune.report.draw import WINNER
from autotune.report.page import to_index
from autotune.report.views import headline, slices, steps
from autotune.results.figures import INTERPRETER_NOTE, relative_error
from autotune.results.study import Study, unfinished

WON = Config({"mode": "pull", "block_m": 32})
ISOLATED = {
    WON: 190.0,
    WON.replace(block_m=128): 210.0,
    WON.replace(block_m=16): 170.0,
    WON.replace(block_m=64): 190.5,
    WON.replace(block_m=128, num_warps=8): 250.0,
}
"""On the device all take 100 µs, and pipelined 150."""


def trial(config: Config, isolated: float) -> TrialRecord:
    return TrialRecord(config, Evaluation(Outcome.MEASURED, latency=latency_of(100.0, 2, 150.0, isolated)))


@pytest.fixture
def hosted(study: Study) -> Study:
    """A study of isolated calls, which is not the default regime."""
    key = dataclasses.replace(study.key, regime=Regime.ISOLATED)
    trials = [*(trial(*each) for each in ISOLATED.items()), trial(WON, 999.0)]
    found = won(study, key, config=WON, latency=latency_of(100.0, 2, 150.0, 1460.0))
    return dataclasses.replace(found, trials=tuple(trials))


def test_neighbours_are_told_by_their_times_in_the_regime(hosted: Study) -> None:
    found = steps.neighbours(hosted)
    assert [(step.value, round(step.ratio, 4)) for step in found] == [(16, 0.8947), (64, 1.0026)], (
        "128 is two steps away"
    )
    assert found[0].error == pytest.approx(found[0].ratio * math.hypot(0.01, 0.01))
    bars = steps.options(hosted, found)["series"][0]["data"]
    assert [bar["value"] for bar in bars] == [round(100 * (step.ratio - 1), 2) for step in found]
    assert [row[1:3] for row in steps.table(hosted, found).rows] == [
        ["170.0 µs ± 1.0 %", "-10.5 ± 1.3 %"], ["190.5 µs ± 1.0 %", "+0.3 ± 1.4 %"],
    ]  # fmt: skip
    assert slices.table(hosted, "pull").rows[-1] == ["block_m", "128", "210.0 µs", "230.0 µs", "2"], "best, median"


def test_the_headline_is_of_the_regime(hosted: Study) -> None:
    assert hosted.result is not None
    hosted = won(hosted, latency=hosted.result.latency.through(HostOverhead(0.0, 0.0)))
    report = hosted.result
    assert report is not None
    rows = {row[0]: row[-1] for row in headline.table(report).rows}
    assert rows["NCCL + cuBLAS in a CUDA graph"].startswith("0.50 ± "), "730 µs over 1460"
    bars = headline.options(report)["series"][0]["data"]
    assert [bar["value"] for bar in bars if bar["itemStyle"]["color"] == WINNER] == [1460.0]
    found = headline.view(hosted)
    assert found is not None and any("our operator adds" in note for note in found.notes)
    rounds = Latency(100.0, 99.0, 101.0, 1.0, 9, rounds=(99.0, 101.0, 100.0))
    error = relative_error(rounds, Regime.GRAPH)
    assert headline.interval(rounds, Regime.GRAPH) == pytest.approx((100 * math.exp(-error), 100 * math.exp(error)))


def test_the_index_has_the_regimes_time_and_the_whole_span(hosted: Study) -> None:
    assert ">1.460 ms ± 1.0 %</td>" in to_index([hosted])
    studies = []
    for size, value in ((64, 1.3), (256, 1.1), (1024, 2.0)):
        studies.append(won(of_size(hosted, size), baselines={"bsp graph": latency_of(100.0 * value)}))
    (lead,) = re.findall('<p class="facts">(.*?)</p>', to_index(studies))
    assert "1.10 to 2.00" in lead and "1.42" in lead


def test_an_unfinished_study_s_numbers_are_of_its_regime_and_end_with_its_last_trial(tmp_path: Path) -> None:
    key = CacheKey("strange", '{"width":4}', 1, INTERPRETER, "cpu-interpreter", "shared-memory", Regime.ISOLATED)
    with Store.open(tmp_path / "cache.db") as store:
        begun = store.study(key, Provenance("a", "b", "3", "0", "2", "5"), seed=7, space_size=6)
        for config, isolated in ISOLATED.items():
            store.record(begun.id, trial(config, isolated))
        store.record(begun.id, dataclasses.replace(trial(WON, 1.0), source="final", number=0))
        (record,) = store.studies()
        found = unfinished(store, record)
    assert INTERPRETER_NOTE in found.notes
    (rows,) = [knob for knob in found.knobs if knob.name == "block_m"]
    assert {each.value: each.best for each in rows.reached} == {16: 170.0, 32: 190.0, 64: 190.5, 128: 210.0}
    assert [(ending.outcome, ending.count) for ending in found.endings] == [(Outcome.MEASURED, 5)], "of the search"
    first = datetime(2026, 1, 1, tzinfo=UTC)
    times = [dataclasses.replace(each, created_at=first + timedelta(days=n)) for n, each in enumerate(found.trials)]
    assert dataclasses.replace(found, trials=tuple(times)).last_moment == first + timedelta(days=5)
