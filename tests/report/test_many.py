"""Many problems: the map, and what is stale or missing."""

from __future__ import annotations

import dataclasses

import pytest
from sized_studies import of_size, won

from autotune.report.page import to_html, to_index
from autotune.report.views import crossover, gaps, many
from autotune.results.figures import problem_text
from autotune.results.study import Study


@pytest.fixture
def studies(study: Study) -> list[Study]:
    """Two families: three sizes, of which one is a tie, and two sizes, of which pull wins one."""
    first = [of_size(study, 64, pull=99.5), of_size(study, 256), of_size(study, 4096)]
    return [*first, of_size(study, 64, k=1024), of_size(study, 4096, k=1024, push=100.0, pull=60.0)]


def test_a_cell_for_each_problem_in_its_modes_colour(studies: list[Study]) -> None:
    [field] = many.fields_of(studies)
    assert (field.size, field.sizes, [line.name for line in field.lines]) == (
        "m",
        [64, 256, 4096],
        ["k=8192", "k=1024"],
    )
    option = many.map_options(field)
    assert option["xAxis"]["data"] == ["64", "256", "4096"] and option["yAxis"]["data"] == ["k=8192", "k=1024"]
    cells = {series["name"]: [cell["value"] for cell in series["data"]] for series in option["series"]}
    assert cells == {
        "pull": [[0, 0, 1, ""], [2, 1, 0, "+67 %"]],
        "push": [[1, 0, 0, "+50 %"], [2, 0, 0, "+50 %"], [0, 1, 0, "+50 %"]],
    }
    assert len({series["color"] for series in option["series"]}) == 2
    assert "a tie" in option["series"][0]["data"][0]["name"]


def test_problems_of_one_size_are_no_field(study: Study, only_failed: Study) -> None:
    assert many.fields_of([of_size(study, 64), of_size(study, 64, dtype="fp16"), only_failed]) == []
    other = of_size(study, 64)
    assert many.fields_of([study, won(other, dataclasses.replace(other.key, device="other"))]) == [], "two machines"


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
    assert 'data-chart="map-0"' in page
    assert page.count(" --regime graph</td>") == len(graph) + 1, "in the list of all studies, and of unfinished ones"
    assert len(crossover.views([*eager, *graph])) == 2
    assert f"{problem_text(graph[0].problem)} --regime graph</p>" in to_html(graph[0])
