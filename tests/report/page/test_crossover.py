"""Crossovers over a family of problems."""

from __future__ import annotations

import pytest
from sized_studies import of_size

from autotune.report.page import Study, to_index
from autotune.report.page.views import crossover


def test_a_family_differs_in_one_size_alone(study: Study, only_failed: Study) -> None:
    members = [of_size(study, 4096), of_size(study, 64), of_size(study, 64, push=90.0)]
    others = [of_size(study, 64, k=1024), of_size(study, 64, dtype="fp16"), only_failed]
    ((name, found),) = crossover.families([*members, *others])
    assert name == "m" and [size for size, _ in found] == [64, 4096]
    assert found[0][1] is members[1], "of equal problems the first, which is the newest"


def test_the_winners_mode_and_its_margin(study: Study) -> None:
    clear = crossover.point(of_size(study, 64, push=100.0, pull=150.0), 64)
    assert (clear.mode, clear.next_mode, clear.tied) == ("push", "pull", False)
    assert clear.margin is not None and clear.margin.value == pytest.approx(1.5)
    tie = crossover.point(of_size(study, 64, push=100.0, pull=99.5), 64)
    assert (tie.mode, tie.next_mode, tie.tied) == ("pull", "push", True)


def test_a_bar_for_each_size_in_its_modes_colour_and_hollow_where_tied(study: Study) -> None:
    members = [of_size(study, 64, pull=99.5), of_size(study, 256), of_size(study, 1024, push=100.0, pull=60.0)]
    points = [crossover.point(each, int(str(each.problem["m"]))) for each in members]
    option = crossover.options("m", points)
    assert option["yAxis"]["data"] == ["m 64", "m 256", "m 1024"]
    drawn = {series["name"]: [bar["value"] for bar in series["data"]] for series in option["series"][:-1]}
    assert list(drawn) == ["pull", "push"]
    assert [value is None for value in drawn["pull"]] == [False, True, False]
    assert [value is None for value in drawn["push"]] == [True, False, True]
    hollow = [bar for series in option["series"][:-1] for bar in series["data"] if "itemStyle" in bar]
    assert len(hollow) == 1 and "a tie" in hollow[0]["name"]


def test_the_index_has_the_crossovers(study: Study) -> None:
    page = to_index([of_size(study, 64), of_size(study, 256)])
    assert "all-gather-gemm: which mode wins at which m" in page and 'data-chart="crossover-0"' in page
    assert 'data-chart="' not in to_index([study])
