"""The views' options and numbers, without a browser: what is drawn is what was measured, in the regime tuned for."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fakes import latency_of
from sized_studies import of_size, won

from autotune.config import Config
from autotune.db import CacheKey, Provenance, Store, TrialRecord
from autotune.machine import INTERPRETER
from autotune.outcome import Evaluation, HostOverhead, Latency, Outcome, Regime
from autotune.report.draw import WINNER
from autotune.report.page import to_index
from autotune.report.page.document import VIEWS
from autotune.report.view import View
from autotune.report.views import finals, headline, importance, parallel, search, slices, steps
from autotune.results.figures import INTERPRETER_NOTE, relative_error
from autotune.results.library import LIBRARIES, OPERATIONS, baseline_name, mode_name
from autotune.results.study import Study, unfinished
from autotune.tuning.finals import FINAL
from autotune.workloads.user_files import BUILT_IN

SERIES = {"bar", "boxplot", "custom", "line", "parallel", "scatter"}


def views(study: Study) -> dict[str, View]:
    return {found.name: found for view in VIEWS if (found := view(study)) is not None}


def series_of(option: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [each for each in option["series"] if each.get("name") == name]
    return dict(found)


def test_options_are_json_of_series_that_the_library_has(any_study: Study) -> None:
    found = views(any_study)
    assert "search" in found
    for view in found.values():
        assert all(len(row) == len(table.header) for table in view.tables for row in table.rows)
        for chart in view.charts:
            assert json.loads(json.dumps(chart.option, allow_nan=False)) == chart.option
            assert {series["type"] for series in chart.option["series"]} <= SERIES
            assert chart.label and chart.height > 50
            text = json.dumps(chart.option, ensure_ascii=False)
            assert not any(hidden in text for hidden in (r"\u001b", r"\u0007", "\u202e"))


def test_the_headline_has_winner_baselines_and_limits_in_the_regime_tuned_for(study: Study) -> None:
    report = study.result
    option = headline.options(report)
    library = "NCCL + cuBLAS"
    rows = [each["value"] for each in option["yAxis"]["data"]]
    assert rows[:3] == [f"winner: {report.config['mode']}", library, "the same in a CUDA graph"]
    assert set(rows[3:]) == {"GEMM alone", "all-gather alone", "roofline (arithmetic)"}
    series = option["series"][0]
    taken = {each.baseline: each.latency.of(report.regime) for each in report.speedups}
    expected = [report.latency.of(report.regime), taken["bsp eager"], taken["bsp graph"]]
    assert [bar["value"] for bar in series["data"]][:3] == pytest.approx(expected, abs=1e-3)
    assert [line["xAxis"] for line in series["markLine"]["data"]] == [report.limit.parts["gemm"].median]
    told = {row[0]: row for row in headline.table(report).rows}
    assert told[f"{library} in a CUDA graph"][1].startswith(f"{expected[2]:.1f} µs") and told[library][3]
    assert told["GEMM alone"][2:4] == ["", ""], "limits are of the device alone"


@pytest.mark.parametrize(
    ("arch", "device", "name"),
    [("sm_90", "GPU", "NCCL + cuBLAS"), ("gfx942", "GPU", "RCCL + hipBLASLt"), ("cpu", INTERPRETER, "torch")],
)
def test_a_baseline_is_named_by_the_libraries_of_its_device(study: Study, arch: str, device: str, name: str) -> None:
    key = dataclasses.replace(study.key, arch=arch, device=device)
    assert baseline_name(key, "bsp eager") == name and baseline_name(key, "bsp graph") == f"{name} in a CUDA graph"
    assert baseline_name(key, "mine") == baseline_name(dataclasses.replace(key, workload="own"), "mine") == "mine"


def test_every_operation_says_what_it_computes_and_calls() -> None:
    assert OPERATIONS.keys() == LIBRARIES.keys() == BUILT_IN.keys()


def test_only_intervals_over_rounds_are_called_so(study: Study) -> None:
    """A replay and an older version's result have one round, or none."""
    report = study.result
    assert report is not None and report.latency.rounds
    assert headline.BY_ROUNDS in views(study)["headline"].text
    once = won(study, latency=latency_of(report.latency.median))
    assert headline.BY_SPREAD in views(once)["headline"].text
    assert "95 % interval" in views(study)["finals"].text
    trials = tuple(each for each in study.trials if each.source != FINAL or each.number == 0)
    assert "finals" not in views(dataclasses.replace(study, trials=trials)), "of one round there is nothing to see"


def test_the_best_so_far_falls_to_the_best(study: Study) -> None:
    moments = search.timeline(study)
    found = search.best_so_far(study, moments)
    assert all(one[1] >= other[1] and one[0] <= other[0] for one, other in itertools.pairwise(found))
    assert found[-1][1] == min(study.microseconds(config) for config in study.measured)
    assert found[-1][0] == moments[-1].at


def test_every_trial_is_a_dot_or_on_the_rim(any_study: Study) -> None:
    option = search.options(any_study)
    dots = [len(series["data"]) for series in option["series"] if series["type"] == "scatter"]
    assert sum(dots) == len(any_study.trials)
    for kind in search.failures(any_study):
        failed = [trial for trial in any_study.trials if trial.evaluation.outcome is kind]
        assert len(series_of(option, kind.value)["data"]) == len(failed) > 0


def test_an_interruption_is_left_out_of_the_clock(study: Study) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    trials = [
        dataclasses.replace(trial, created_at=begin + timedelta(seconds=5 + number + (7200 if number > 10 else 0)))
        for number, trial in enumerate(study.trials[:20])
    ]
    paused = dataclasses.replace(
        study, record=dataclasses.replace(study.record, created_at=begin), trials=tuple(trials)
    )
    moments = search.timeline(paused)
    assert moments[-1].at < 30
    assert [round(moment.paused) for moment in moments if moment.paused] == [7200]
    assert len(series_of(search.options(paused), "phases")["markLine"]["data"]) == 1


def test_parallel_axes_are_of_one_mode_and_end_with_the_latency(study: Study) -> None:
    modes = parallel.shown_modes(study)
    assert len(modes) > 1
    for mode in modes:
        option = parallel.options(study, mode)
        axes, lines = option["parallelAxis"], option["series"][0]["data"]
        assert axes[-1]["name"] == "latency" and "mode" not in [axis["name"] for axis in axes]
        assert len(lines) == len(study.of_mode(mode))
        for line in lines:
            assert all(value in axis["data"] for value, axis in zip(line["value"], axes[:-1], strict=False))
            assert len(line["value"]) == len(axes) and line["value"][-1] <= axes[-1]["max"]
        assert option["media"][0]["option"]["parallel"]["layout"] == "vertical"
    found = parallel.view(study)
    assert found is not None and [chart.tab for chart in found.charts] == [mode_name(study.key, m) for m in modes]


def test_slices_are_of_the_winners_mode_and_those_without_effect_are_folded(study: Study) -> None:
    assert slices.view(study) is None, "three configs of its mode"
    mode = parallel.shown_modes(study)[0]
    config = min(study.of_mode(mode), key=study.microseconds)
    other = won(study, config=config)
    option = slices.options(other, mode, "num_stages")
    assert option["xAxis"]["data"] == sorted(option["xAxis"]["data"], key=int)
    dots, winner = option["series"][1]["data"], option["series"][2]["data"]
    assert len(dots) == len(study.of_mode(mode))
    assert winner[0]["value"][1] == pytest.approx(study.microseconds(config), abs=1e-3)
    found, effects = slices.view(other), [effect for _, effect in slices.effects(other, mode)]
    assert found is not None and effects == sorted(effects, reverse=True)
    assert [chart.folded for chart in found.charts] == [effect < steps.SMALL for effect in effects]


def test_small_steps_are_named_and_not_drawn(study: Study) -> None:
    near = study.winner.replace(num_stages=5)
    ours = study.measured[study.winner]
    trials = [*study.trials, TrialRecord(near, Evaluation(Outcome.MEASURED, latency=ours), source="sampler")]
    found = steps.view(dataclasses.replace(study, trials=tuple(trials)))
    assert found is not None and "num_stages 4 → 5" in found.text
    drawn = [bar["name"] for chart in found.charts for bar in chart.option["series"][0]["data"]]
    assert drawn and not any("num_stages" in name for name in drawn)
    assert any(row[0] == "num_stages 4 → 5" for row in found.tables[0].rows)


def test_importance_is_of_what_varied_and_falls(study: Study, one_trial: Study) -> None:
    option = importance.options(study)
    values = [bar["value"] for bar in option["series"][0]["data"]]
    assert values == sorted(values, reverse=True) and sum(values) == pytest.approx(1.0, abs=0.01)
    drawn = {knob.name for knob in study.knobs if (knob.importance or 0) >= importance.LEAST}
    assert set(option["yAxis"]["data"]) == drawn < {knob.name for knob in study.knobs}
    assert importance.view(one_trial) is None
    few = importance.ends(one_trial)
    assert few is not None and not few.notes and "importance" not in few.tables[0].header


def test_who_beat_whom(study: Study) -> None:
    report = study.result
    found = finals.finalists(study)
    assert found[0].config == study.winner and len({each.name for each in found}) == len(found)
    slower = found[-1].config
    assert finals.finalists(won(study, config=slower))[0].config == slower, "the winner is first, however fast"
    said = {each.name: finals.verdict(report, each) for each in found}
    assert said[found[0].name] == "winner"
    assert said["NCCL + cuBLAS"] == said["NCCL + cuBLAS in a CUDA graph"] == "slower"
    beaten = sum(verdict == "slower" for verdict in said.values())
    assert f" {beaten} of {len(found) - 1} " in finals.conclusion(report, found)
    assert finals.conclusion(report, found[:1]) == "", "there was nobody to beat"


def test_the_winner_s_host_overhead_is_not_held_against_it_in_the_finals(study: Study) -> None:
    """Finalists are bound calls; the host overhead of the winner's claim is longer than its device."""
    report = study.result
    claimed = won(study, latency=report.latency.through(HostOverhead(900.0, 900.0))).result
    found = finals.finalists(study)
    assert claimed.latency.of(report.regime) > 2 * report.latency.of(report.regime)
    assert finals.conclusion(claimed, found) == finals.conclusion(report, found)
    assert finals.table(claimed, found).rows == finals.table(report, found).rows


def test_a_config_that_failed_its_proof_is_not_the_best_so_far(interrupted: Study) -> None:
    best = interrupted.winner
    wrong = TrialRecord(best, Evaluation(Outcome.WRONG_RESULT, "planted"), source="proof")
    proven = dataclasses.replace(interrupted, trials=(*interrupted.trials, wrong))
    assert proven.winner not in (best, None)


def test_what_is_off_the_chart_is_a_triangle_that_tells_its_latency(study: Study) -> None:
    place, slow = next((i, trial) for i, trial in enumerate(study.trials) if trial.source == "sampler")
    evaluation = dataclasses.replace(slow.evaluation, reason="", outcome=Outcome.MEASURED, latency=latency_of(98765.0))
    trials = [*study.trials[:place], dataclasses.replace(slow, evaluation=evaluation), *study.trials[place + 1 :]]
    option = search.options(dataclasses.replace(study, trials=tuple(trials)))
    top = option["yAxis"][0]["max"]
    assert top < 2000
    dots = [dot for series in option["series"] if series["type"] == "scatter" for dot in series["data"]]
    (capped,) = [dot for dot in dots if dot.get("symbol") == "triangle"]
    assert capped["value"][1] == top and "98.77 ms" in capped["name"]


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
    assert [(step.value, round(step.ratio.value, 4)) for step in found] == [(16, 0.8947), (64, 1.0026)], (
        "128 is two steps away"
    )
    assert found[0].ratio.error == pytest.approx(found[0].ratio.value * math.hypot(0.01, 0.01))
    bars = steps.options(hosted, found)["series"][0]["data"]
    assert [bar["value"] for bar in bars] == [round(100 * (step.ratio.value - 1), 2) for step in found]
    assert [row[1:3] for row in steps.table(hosted, found).rows] == [
        ["170.0 µs ± 1.0 %", "-10.5 ± 1.3 %"], ["190.5 µs ± 1.0 %", "+0.3 ± 1.4 %"],
    ]  # fmt: skip
    assert slices.table(hosted, "pull").rows[-1] == ["block_m", "128", "210.0 µs", "230.0 µs", "2"], "best, median"


def test_the_headline_is_of_the_regime(hosted: Study) -> None:
    hosted = won(hosted, latency=hosted.result.latency.through(HostOverhead(0.0, 0.0)))
    report = hosted.result
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
    assert [(ending.outcome, ending.count) for ending in found.endings] == [(Outcome.MEASURED, 5)], "of the search"
    first = datetime(2026, 1, 1, tzinfo=UTC)
    times = [dataclasses.replace(each, created_at=first + timedelta(days=n)) for n, each in enumerate(found.trials)]
    assert dataclasses.replace(found, trials=tuple(times)).last_moment == first + timedelta(days=5)
