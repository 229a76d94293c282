"""A mixture's winner under other routings, as people and programs read it: terminal, Markdown, JSON, web page."""

from __future__ import annotations

import dataclasses
import json

import pytest
from fakes import EIGHT_GPUS, latency_of

from autotune.cli.entry_text import winner_dict, winner_lines
from autotune.db import CacheKey, Entry, Routed, Store, Winner
from autotune.outcome import Door
from autotune.report import Report, build, to_json, to_markdown
from autotune.report.page import finished, to_html
from autotune.report.page.views import routings as view_of
from autotune.workloads import provenance_of, workload

FOUND = workload("moe_dispatch")
PROBLEM = FOUND.problem_type(tokens=128, hidden=7168, experts=64, top_k=8, world_size=2, routing="zipf", exponent=0.5)
CONFIG = FOUND.default_config(PROBLEM, EIGHT_GPUS)
TIMES = "1.50 ± 0.02 (by spread)"
ROUTINGS = {
    "uniform": Routed(latency_of(100.0), {"bsp graph": latency_of(150.0)}),
    "one expert": Routed(latency_of(400.0)),
}


def stored(store: Store, routings: dict[str, Routed]) -> Entry:
    winner = Winner(CONFIG, latency_of(120.0), {"bsp graph": latency_of(180.0)}, routings=routings)
    key, provenance = CacheKey.of(PROBLEM, EIGHT_GPUS), provenance_of(FOUND)
    store.finish(store.study(key, provenance, seed=0, space_size=9).id, winner)
    [entry] = store.entries()
    return entry


def reported(store: Store, routings: dict[str, Routed]) -> Report:
    return build(store, stored(store, routings), FOUND)


def section(report: Report) -> list[str]:
    """The lines of its section in the report."""
    return to_markdown(report).split("## Under other routings")[1].split("\n## ")[0].strip().splitlines()


def test_a_row_for_each_routing_with_both_times_and_their_ratio(store: Store) -> None:
    report = reported(store, ROUTINGS)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section(report) if line.startswith("|")]
    assert rows[0] == ["routing", "winner", "fastest baseline", "times as fast"]
    assert rows[2:] == [
        ["zipf 0.5, tuned for", "120.0 µs ± 1.0 %", "bsp graph: 180.0 µs ± 1.0 %", TIMES],
        ["uniform", "100.0 µs ± 1.0 %", "bsp graph: 150.0 µs ± 1.0 %", TIMES],
        ["zipf 1", "not timed: the budget ended", "", ""],
        ["one expert", "400.0 µs ± 1.0 %", "not measured", ""],
    ]
    told = json.loads(to_json(report))["routings"]
    assert [(each["routing"], each["tuned_for"], each["latency"] and each["latency"]["median"]) for each in told] == [
        ("zipf 0.5", True, 120.0), ("uniform", False, 100.0), ("zipf 1", False, None), ("one expert", False, 400.0),
    ]  # fmt: skip


def test_a_baseline_that_is_the_winner_is_not_compared_with_itself(store: Store) -> None:
    """The door is in the winner's times alone; the device's time is of the same calls."""
    library, door = dataclasses.replace(latency_of(150.0), host=40.0), Door(9.0, 14.0)
    routed = Routed(library.through(door), {"bsp eager": library})
    [row] = [each for each in reported(store, {"uniform": routed}).routings if each.routing == "uniform"]
    assert row.baseline == "bsp eager" and row.ratio is None


def test_the_terminal_names_the_others(store: Store) -> None:
    entry = stored(store, ROUTINGS)
    lines = winner_lines(entry.key, entry.winner)
    place = [name for name, _ in lines].index("routings")
    assert lines[place : place + 3] == [
        (
            "routings",
            f"uniform: 100.0 µs ± 1.0 %, {TIMES} times as fast as bsp graph (150.0 µs ± 1.0 %)",
        ),
        ("", "zipf 1: not timed: the budget ended"),
        ("", "one expert: 400.0 µs ± 1.0 %"),
    ]
    told = winner_dict(entry.winner)["routings"]
    assert told["uniform"]["microseconds"] == 100.0
    assert told["uniform"]["speedups"]["bsp graph"]["value"] == pytest.approx(1.5)


def test_the_page_has_a_chart_and_its_table(store: Store) -> None:
    study = finished(store, stored(store, ROUTINGS), FOUND)
    found = view_of.view(study)
    assert found is not None
    [chart], [table] = found.charts, found.tables
    ours, _, theirs, whiskers = chart.option["series"]
    assert [bar["value"] for bar in ours["data"]] == [120.0, 100.0, None, 400.0]
    assert [bar["value"] for bar in theirs["data"]] == [180.0, 150.0, None, None] and len(whiskers["data"]) == 2
    assert len(table.rows) == 4 and "Under other routings" in to_html(study)


def test_what_was_not_measured_is_said(store: Store) -> None:
    study = finished(store, stored(store, {}), FOUND)
    assert study.report is not None and "was not measured" in section(study.report)[0]
    assert ("routings", "not measured under others") in winner_lines(study.record.key, study.record.winner)
    found = view_of.view(study)
    assert found is not None and not found.charts and "was not measured" in to_html(study)


def test_other_workloads_have_no_routings(report: Report) -> None:
    assert report.routings == () and "routing" not in to_markdown(report)
