"""Many problems: what is stale or missing, and what an index says of them."""

from __future__ import annotations

import dataclasses

import pytest
from sized_studies import of_size, won

from autotune.report.page import to_html, to_index
from autotune.report.views import crossover, gaps, overview
from autotune.results.figures import problem_text
from autotune.results.study import Study


@pytest.fixture
def studies(study: Study) -> list[Study]:
    """Two families: three sizes, of which one is a tie, and two sizes, of which pull wins one."""
    first = [of_size(study, 64, pull=99.5), of_size(study, 256), of_size(study, 4096)]
    return [*first, of_size(study, 64, k=1024), of_size(study, 4096, k=1024, push=100.0, pull=60.0)]


def test_problems_of_one_size_and_two_machines_lack_nothing(study: Study, only_failed: Study) -> None:
    assert gaps.view([of_size(study, 64), of_size(study, 64, dtype="fp16"), only_failed], []) is None
    here = [of_size(study, 64), of_size(study, 256)]
    there = [won(each, dataclasses.replace(each.key, device="other")) for each in (*here, of_size(study, 512))]
    assert gaps.view([*here, *there], []) is None


def test_missing_sizes_come_with_their_command(studies: list[Study]) -> None:
    view = gaps.view(studies, [])
    assert view is not None
    [missing] = [table for table in view.tables if table.header[1] == "missing"]
    [(workload, what, command)] = missing.rows
    assert (workload, what) == ("all-gather-gemm", "m=256 of k=1024")
    assert command.startswith("tune all-gather-gemm ") and " --m 256 " in command and " --k 1024 " in command


def test_stale_and_unfinished_studies_are_named(study: Study) -> None:
    assert gaps.view([study], []) is None
    old = dataclasses.replace(study.record, provenance=dataclasses.replace(study.record.provenance, triton="1.0"))
    view = gaps.view([dataclasses.replace(study, record=old)], [study.record])
    assert view is not None
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
