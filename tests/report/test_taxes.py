"""The taxes on the page and in the report, without a browser: what is drawn is what was measured."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from fakes import EIGHT_GPUS, FakeGang, tune_over

from autotune.config import Config
from autotune.db import Store
from autotune.kernels.gemm_reduce_scatter.modes import Push
from autotune.report.markdown import to_markdown
from autotune.report.page import to_html
from autotune.report.views import taxes as view_of
from autotune.report.views import timeline
from autotune.report.waterfall import table
from autotune.results.study import Study, finished
from autotune.task import Task
from autotune.taxes.measure import Amount, Base, measure
from autotune.taxes.result import Taxes
from autotune.timeline import KEPT_ROWS
from autotune.tuning import Budget, Effort
from autotune.workloads import workload

FOUND = workload("gemm_reduce_scatter")
AMOUNT = Amount(rounds=4, dose_rounds=2, calls=2, warmup=0, warmed=0.0, late=(0.0, 10.0, 50.0))
EFFORT = Effort(trials=9, screen=3, iterations=3, finalists=2, rounds=2)


@pytest.fixture(scope="module")
def measured() -> Taxes:
    problem = FOUND.default_problem(EIGHT_GPUS, 8)
    config = Push.by_tiles(Task(problem, EIGHT_GPUS)).replace(num_stages=3).config()
    gang: Any = FakeGang(problem)
    return measure(FOUND, Task(problem, EIGHT_GPUS), gang, config, Base(config, "the winner"), AMOUNT, trace=True)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with Store.open(file := tmp_path_factory.mktemp("taxed") / "cache.db") as store:
        tune_over(FakeGang(FOUND.default_problem(EIGHT_GPUS, 8)), store, FOUND, Budget(9), EFFORT)
    return file


@pytest.fixture(scope="module")
def taxed(measured: Taxes, tuned: Path) -> Study:
    return study_of(tuned, taxes=measured.to_json())


def study_of(file: Path, **attached: str) -> Study:
    with Store.open(file) as store:
        for kind, text in attached.items():
            store.attach(1, kind, text)
        return finished(store, store.entries()[0], FOUND)


def test_the_waterfall_draws_every_rung_and_every_step(taxed: Study, measured: Taxes) -> None:
    found = view_of.view(taxed)
    waterfall, launches, lateness = found.charts
    offsets, heights, whiskers = waterfall.option["series"]
    rungs = list(measured.rungs)
    count = len(rungs) + len(measured.steps)
    assert len(heights["data"]) == len(offsets["data"]) == len(whiskers["data"]) == count
    steps, level = iter(measured.steps), 0.0
    for low, high in zip(offsets["data"], heights["data"], strict=True):
        ends = (low["value"], low["value"] + high["value"])
        if high["name"][0] == "–":
            step = next(steps)
            assert step.name in high["name"]
            lower = level - measured.of_step(step).value
            assert ends == pytest.approx(sorted((level, lower)), abs=1e-3), "a step begins where the last bar ends"
            level = lower
        else:
            letter = rungs.pop(0)
            assert ends == pytest.approx((0.0, measured.of_rung(letter).value), abs=1e-3)
            assert level in (0.0, pytest.approx(ends[1], abs=1e-3)), "the steps lead to it"
            level = ends[1]
    assert not rungs and not list(steps)
    assert {series["name"] for series in launches.option["series"]} == {"E1", "G", "B"}
    assert {series["name"] for series in lateness.option["series"]} == {"E1", "B", "D", "F", "all passed on"}
    half = next(series for series in lateness.option["series"] if series["name"] == "D")
    assert half["data"][-1]["value"] == pytest.approx([50.0, 25.0], abs=0.5)
    json.dumps([chart.option for chart in found.charts], allow_nan=False)


def test_the_timeline_has_a_lane_for_each_rank_and_a_span_for_each_event(taxed: Study) -> None:
    found = timeline.view(taxed)
    calls = [*taxed.timeline.values(), taxed.ladder.traces["D"]]
    assert len(calls) == 3, "the library's way, the winner, and the rung"
    [chart] = found.charts
    option = chart.option
    assert len({(axis["min"], axis["max"]) for axis in option["xAxis"]}) == 1, "on one axis"
    assert [title["text"].split(" (")[0] for title in option["title"][:2]] == ["NCCL + cuBLAS, eager", "winner: push"]
    grids = option["grid"]
    assert all(above["top"] + above["height"] < below["top"] for above, below in itertools.pairwise(grids))
    assert grids[-1]["top"] + grids[-1]["height"] < chart.height
    for place, traced in enumerate(calls):
        lines = traced.rows
        assert {rank for rank, *_ in lines} == set(range(8)) and len(lines) <= KEPT_ROWS
        assert [name for name in option["yAxis"][place]["data"] if name] == [f"rank {rank}" for rank in range(8)]
        own = [series for series in option["series"] if series["xAxisIndex"] == place]
        for span in (span for series in own for span in series["data"]):
            row, begin, end = span["value"]
            assert 0 <= row < len(lines) and 0 <= begin <= end and f"rank {lines[row][0]}," in span["name"]
        assert {series["name"] for series in own} == {"computes", "sends", "waits"}
        [line] = [line for series in own for line in series.get("markLine", {}).get("data", ())]
        assert line["xAxis"] == pytest.approx(traced.end, abs=1e-3) and "done after" in line["label"]["formatter"]
    assert len(found.tables[0].rows) == 24 and "4 % slower" in option["title"][1]["text"]


def test_the_tables_say_it_too(taxed: Study) -> None:
    assert "% of E0" in to_html(taxed)
    text = to_markdown(taxed)
    drawn = text[text.index("```text") : text.index("```", text.index("```text") + 5)].splitlines()
    assert all(len(line) <= 80 for line in drawn) and any(line.startswith("B  ") for line in drawn)
    assert taxed.to_dict()["ladder"]["taxes"]["bulk synchrony"]["microseconds"] == pytest.approx(37.5, abs=2)
    json.dumps(taxed.to_dict())


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 99}', '{"format": 2, "rounds": 5}'])
def test_damaged_ones_are_notes_and_no_traceback(tuned: Path, tmp_path: Path, text: str) -> None:
    study = study_of(shutil.copy(tuned, tmp_path / "cache.db"), taxes=text, timeline='{"push": 1}')
    assert study.ladder is None and any("tune taxes" in note for note in study.notes)
    assert study.timeline == {} and any("damaged" in note for note in study.notes)


RUNGS = {"E0": 400.0, "E1": 300.0, "G": 250.0, "B": 260.0, "D": 200.0}
TAXES = Taxes(
    winner=Config({"mode": "push"}),
    base=Config({"mode": "push"}),
    origin="the winner",
    configs={},
    missing={"F": "not here"},
    rounds={letter: (time,) * 4 for letter, time in RUNGS.items()},
    parts={"gemm": (180.0,) * 4, "all_gather": (90.0,) * 4},
    clocks={},
    launches={"B": {0.0: (260.0,) * 4, 4.0: (266.0,) * 4}},
    boundaries=3,
    late={
        "B": {0.0: (100.0,) * 4, 10.0: (110.0,) * 4, 50.0: (150.0,) * 4},
        "D": {0.0: (100.0,) * 4, 50.0: (100.0, 104.0, 100.0, 104.0)},
    },
    barrier=(1.5,) * 4,
)


def test_each_tax_has_its_share_of_the_first_rung() -> None:
    told = dict(table(TAXES))
    numbers = {
        "kernel launch": ("154.5", "39 %"), "bulk synchrony": ("55.50", "14 %"), "a launch": ("1.50",),
        "a late rank": ("100 ± 0 %", "5.0 µs", "4 ± 4 %", "50 µs"), "a barrier": ("1.50",),
    }  # fmt: skip
    assert told.keys() == {*numbers, "locality"}
    assert all(number in told[name] for name, every in numbers.items() for number in every), told
    undosed = dict(table(dataclasses.replace(TAXES, launches={})))
    assert "launches" in undosed["bulk synchrony"]
    noisy = dataclasses.replace(TAXES, rounds={**TAXES.rounds, "D": (253.5, 257.5, 252.5, 259.5)})
    assert dict(table(noisy))["bulk synchrony"].startswith("≈ 0 ± ") and "%" not in dict(table(noisy))["bulk synchrony"]
    larger = dataclasses.replace(TAXES, rounds={**TAXES.rounds, "B": (904.5,) * 4})
    assert dict(table(larger))["bulk synchrony"] == "700.0 ± 0.0 µs", "more than the whole is no share of it"
