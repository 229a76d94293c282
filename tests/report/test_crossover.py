"""Many problems: crossovers over a family, what is stale or missing, and what an index says of them."""

from __future__ import annotations

import dataclasses
import json

import pytest
from fakes import latency_of
from sized_studies import of_size, won

from autotune.config import Config
from autotune.db import TrialRecord
from autotune.machine import INTERPRETER
from autotune.outcome import Evaluation, Outcome, Regime
from autotune.report.page import to_html, to_index
from autotune.report.views import crossover, gaps, overview
from autotune.results.crossover import Range, claim, families, point, ranges, thresholds
from autotune.results.figures import problem_text
from autotune.results.study import Study


def test_a_family_differs_in_one_size_alone(study: Study, only_failed: Study) -> None:
    members = [of_size(study, 4096), of_size(study, 64), of_size(study, 64, push=90.0)]
    others = [of_size(study, 64, k=1024), of_size(study, 16, dtype="fp16"), only_failed]
    others += [won(each, dataclasses.replace(each.key, device="other")) for each in (members[0], of_size(study, 16))]
    ((name, found), (_, elsewhere)) = families([*members, *others])
    assert name == "m" and [size for size, _ in found] == [64, 4096] and len(elsewhere) == 2
    assert found[0][1] is members[1], "of equal problems the first, which is the newest"


def test_a_mode_wins_by_its_times_in_the_regime(study: Study) -> None:
    times = {
        ("push", 16): (100.0, 300.0),
        ("pull", 16): (150.0, 200.0),
        ("pull", 32): (180.0, 190.0),
        ("bsp", 16): (90.0, 310.0),
    }
    trials = []
    for (mode, block_m), (device, host) in times.items():
        measured = Evaluation(Outcome.MEASURED, latency=latency_of(device, host=host))
        trials.append(TrialRecord(Config({"mode": mode, "block_m": block_m}), measured))
    fastest = trials[2]
    assert study.regime is Regime.PIPELINED
    found = dataclasses.replace(of_size(study, 64), trials=tuple(trials))
    found = won(found, config=fastest.config, latency=fastest.evaluation.latency)
    ours = point(found, 64)
    assert (ours.mode, ours.next_mode) == ("pull", "push")
    assert ours.margin is not None and ours.margin.value == pytest.approx(300.0 / 190.0)
    (told,) = json.loads(thresholds([found]))["maps"][0]["measured"]
    assert told["microseconds"] == 190.0 and found.result is not None
    assert dataclasses.replace(found, result=None).winner == fastest.config, "and is the fastest so far"
    other = dataclasses.replace((large := of_size(study, 128)).key, regime=Regime.ISOLATED)
    assert not families([found, won(large, other)]), "another regime's own"


def test_a_point_for_each_size_in_its_modes_colour_and_hollow_where_tied(study: Study) -> None:
    members = [of_size(study, 64, pull=99.5), of_size(study, 256), of_size(study, 1024, push=100.0, pull=60.0)]
    points = [point(each, int(str(each.problem["m"]))) for each in members]
    option = crossover.options("m", points)
    dots = {each["name"]: each["data"] for each in option["series"] if each["type"] == "scatter"}
    assert {mode: [dot["value"][0] for dot in data] for mode, data in dots.items()} == {
        "pull": [64, 1024],
        "push": [256],
    }
    (tied,) = [dot for data in dots.values() for dot in data if dot["itemStyle"]["color"] == "transparent"]
    assert tied["value"][0] == 64 and "a tie" in tied["name"]
    rows = crossover.table("m", points)
    assert rows.header[0] == "m" and [row[0] for row in rows.rows] == ["64", "256", "1024"]
    line, *_ = option["series"]
    borders = [each["xAxis"] for each in line["markLine"]["data"] if "xAxis" in each]
    assert borders == [each.first for each in ranges(points) if each.source == "range"][1:]


def test_the_axis_of_speedups_begins_at_1_or_at_the_least_below(study: Study) -> None:
    faster, slower = ([point(of_size(study, 64, push=push, pull=push), 64)] for push in (100.0, 900.0))
    assert crossover.options("m", faster)["yAxis"]["min"] == 1
    assert 0.3 < crossover.options("m", slower)["yAxis"]["min"] < 0.6


def test_without_speedups_no_chart_is_drawn(study: Study) -> None:
    """Under the interpreter."""
    sizes = [won(each, dataclasses.replace(each.key, device=INTERPRETER)) for each in
             (of_size(study, 64), of_size(study, 128))]  # fmt: skip
    (view,) = crossover.views(sizes)
    assert not view.charts and view.tables[0].rows


def told(found: list[Range]) -> list[tuple[int, int, str, str, list[int]]]:
    return [(each.first, each.last, each.mode, each.source, [p.size for p in each.points]) for each in found]


def test_between_two_sizes_the_nearer_one_decides_as_in_a_look_up(study: Study) -> None:
    pulled = {"push": 100.0, "pull": 60.0}
    near = [point(of_size(study, 64), 64), point(of_size(study, 128), 128), point(of_size(study, 256, **pulled), 256)]
    assert told(ranges(near)) == [
        (32, 63, "push", "nearest", [64]), (64, 181, "push", "range", [64, 128]), (182, 256, "pull", "range", [256]),
        (257, 512, "pull", "nearest", [256]),
    ], "the border is sqrt(128 * 256)"  # fmt: skip
    far = [point(of_size(study, 1), 1), point(of_size(study, 16), 16), point(of_size(study, 64, **pulled), 64)]
    assert [each[:4] for each in told(ranges(far))] == [
        (1, 1, "push", "range"), (2, 2, "push", "nearest"), (8, 15, "push", "nearest"), (16, 32, "push", "range"),
        (33, 64, "pull", "range"), (65, 128, "pull", "nearest"),
    ]  # fmt: skip
    told_of = [crossover.borders("m", each) for each in (near, far, far[:2])]
    assert told_of == ["Fastest: push up to m=181, then pull", "Fastest: push up to m=32, then pull", ""]
    rows = crossover.served("m", far).rows
    assert [row[:4] for row in rows if row[3] == "the default"] == [["3", "7", "", "the default"]]
    assert next(row for row in rows if row[0] == "16")[4:] == ["m=16", crossover.speedup_text(ranges(far)[3])]


def test_what_look_ups_serve_is_told_along_ranges_alone(study: Study) -> None:
    by_rows, by_columns = (
        [of_size(study, 64), of_size(study, m, n=n)] for m, n in ((128, study.problem["n"]), (64, 32))
    )
    ((rows,), (columns,)) = (crossover.views(each) for each in (by_rows, by_columns))
    assert len(rows.tables) == 2 and len(columns.tables) == 1, "no config of another n is served"
    assert "m=64 to 128: " in rows.text and "at 2 searched sizes" in rows.text


def test_a_range_that_loses_anywhere_does_not_claim_otherwise() -> None:
    assert "never below 0.99 at 2 verified" in claim("m=1 to 8", [1.1], [0.998, 1.2], "NCCL")
    assert claim("m=1 to 8", [], []) == ""


def test_thresholds_for_a_program_that_knows_nothing_of_us(study: Study) -> None:
    members = [of_size(study, 256, push=100.0, pull=60.0), of_size(study, 64, pull=99.5), of_size(study, 7, k=5)]
    told = json.loads(thresholds(members))
    assert (told["format"], told["version"]) == ("iris-autotune/thresholds", 1)
    assert thresholds(reversed(members)) == thresholds(members)
    alone, several = sorted(told["maps"], key=lambda each: len(each["measured"]))
    assert [each["size"] for each in alone["measured"]] == [7]
    assert several["by"] == "m" and "m" not in several["problem"] and several["problem"]["n"] == study.problem["n"]
    by_source = [(each["from"], each["to"], each["mode"], each["source"]) for each in several["ranges"]]
    assert by_source == [(32, 63, "pull", "nearest"), (64, 256, "pull", "range"), (257, 512, "pull", "nearest")]
    assert [each["measured_at"] for each in several["ranges"]] == [[64], [64, 256], [256]]
    assert several["ranges"][1]["worst_speedup"] == min(each["speedup"] for each in several["measured"])
    first, second = several["measured"]
    assert first["tie"] and first["next_mode"] == "push" and first["next_takes"] == pytest.approx(100 / 99.5)
    assert not second["tie"] and second["microseconds"] == 60.0


def test_thresholds_are_of_the_size_in_which_look_ups_take_neighbours(study: Study) -> None:
    members = [of_size(study, m, n=n) for m, n in ((64, 1024), (64, 4096), (64, 16384), (256, 1024))]
    maps = json.loads(thresholds(members))["maps"]
    assert {each["by"] for each in maps} == {"m"} and len(maps) == 3
    assert sorted((each["problem"]["n"], len(each["measured"])) for each in maps) == [(1024, 2), (4096, 1), (16384, 1)]


def test_problems_of_one_size_and_two_machines_lack_nothing(study: Study, only_failed: Study) -> None:
    assert gaps.view([of_size(study, 64), of_size(study, 64, dtype="fp16"), only_failed], []) is None
    here = [of_size(study, 64), of_size(study, 256)]
    there = [won(each, dataclasses.replace(each.key, device="other")) for each in (*here, of_size(study, 512))]
    assert gaps.view([*here, *there], []) is None


def test_missing_sizes_come_with_their_command(study: Study) -> None:
    sizes = [*((m, study.problem["k"]) for m in (64, 256, 4096)), (64, 1024), (4096, 1024)]
    view = gaps.view([of_size(study, m, k=k) for m, k in sizes], [])
    [missing] = [table for table in view.tables if table.header[1] == "missing"]
    [(workload, what, command)] = missing.rows
    assert (workload, what) == ("all-gather-gemm", "m=256 of k=1024")
    assert command.startswith("tune all-gather-gemm ") and " --m 256 " in command and " --k 1024 " in command


def test_stale_and_unfinished_studies_are_named(study: Study) -> None:
    assert gaps.view([study], []) is None
    old = dataclasses.replace(study.record, provenance=dataclasses.replace(study.record.provenance, triton="1.0"))
    view = gaps.view([dataclasses.replace(study, record=old)], [study.record])
    stale, unfinished = view.tables
    assert "triton 1.0 is now" in stale.rows[0][2] and stale.rows[0][3].endswith("--force")
    assert unfinished.rows[0][0] == "all-gather-gemm"


def test_results_of_two_regimes_are_told_apart(study: Study) -> None:
    eager = [of_size(study, 64), of_size(study, 256)]
    graph = [won(each, dataclasses.replace(each.key, regime="graph")) for each in eager]
    page = to_index([*eager, *graph], [graph[0].record])
    assert page.count(" --regime graph</td>") == len(graph) + 1, "in the list of all studies, and of unfinished ones"
    assert len(crossover.views([*eager, *graph])) == 2
    assert f"{problem_text(graph[0].problem)} --regime graph</p>" in to_html(graph[0])


def test_replays_are_called_so_and_not_stale(study: Study) -> None:
    replayed = dataclasses.replace(study.record.provenance, space="00, replay of 2026-11-21", triton="1.0")
    replay = dataclasses.replace(study, record=dataclasses.replace(study.record, provenance=replayed))
    assert replay.repeat.startswith("tune demo ") and gaps.view([replay], []) is None
    index = to_index([study, replay])
    assert "1 of 2 results are replays" in index and "replay of 2026-11-21" in index


def test_results_of_one_kernel_and_problem_are_told_apart(without_modes: Study) -> None:
    record = dataclasses.replace(without_modes.record, id=7)
    rows = overview.table([without_modes, dataclasses.replace(without_modes, record=record)]).rows
    assert rows[0] != rows[1] and all("BLOCK=64" in row for row in rows)
