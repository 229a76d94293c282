"""Options by width, without a browser: legends have their rows, names beside bars their room."""

from __future__ import annotations

from typing import Any

from autotune.report.draw import NARROW, base, legend
from autotune.report.page.document import VIEWS
from autotune.report.page.layout import PHONE, ROW, SCREEN, laid_out, legend_rows
from autotune.report.view import Chart
from autotune.results.study import Study

MODES = ["best so far", "bsp", "custom_collective", "pull", "pull_staged", "push", "copy_engine"]


def charts(study: Study) -> dict[str, Chart]:
    views = [found for view in VIEWS if (found := view(study)) is not None]
    return {chart.name: chart for view in views for chart in view.charts}


def of_width(chart: Chart) -> tuple[dict[str, Any], dict[str, Any]]:
    narrow, wide, *_ = laid_out(chart).option["media"]
    assert [narrow["query"], wide["query"]] == [{"maxWidth": NARROW}, {"minWidth": NARROW + 1}]
    return narrow["option"], wide["option"]


def test_a_legend_has_as_many_rows_as_its_names_need() -> None:
    def rows(*names: str) -> tuple[int, int]:
        option = base(legend=legend(data=list(names)), series=[])
        return legend_rows(option, PHONE), legend_rows(option, SCREEN)

    assert rows() == rows("bsp") == (1, 1)
    assert rows("in a graph", "pipelined", "isolated") == (1, 1)
    assert rows(*MODES) == (3, 2)
    assert rows("n" * 400, "m" * 400) == (2, 1), "of a long name only what is shown takes room"
    assert legend_rows(base(series=[]), PHONE) == 1


def test_rows_of_a_legend_make_the_chart_higher_not_its_grid_lower(study: Study) -> None:
    for chart in charts(study).values():
        laid = laid_out(chart)
        for option, height, room in zip(of_width(chart), (laid.phone, laid.screen), (PHONE, SCREEN), strict=True):
            more = ROW * (legend_rows(chart.option, PHONE if chart.small else room) - 1)
            assert height == chart.height + more
            if "legend" in chart.option:
                grids = chart.option["grid"] if isinstance(chart.option["grid"], list) else [chart.option["grid"]]
                assert option["grid"][0]["top"] == grids[0]["top"] + more
    search = laid_out(charts(study)["search"])
    assert search.phone > search.screen, "seven entries do not fit one row of a phone"


def test_axes_lie_on_top_of_each_other_where_their_names_would_meet(study: Study) -> None:
    chart = charts(study)["parallel-0"]
    *_, stacked, beside = laid_out(chart).option["media"]
    assert [each["option"]["parallel"]["layout"] for each in (stacked, beside)] == ["vertical", "horizontal"]
    axes = chart.option["parallelAxis"]
    assert stacked["query"]["maxWidth"] >= max(NARROW, 40 * len(axes)) and 48 * len(axes) > NARROW, "wider than a phone"
    kept = [axis["nameLocation"] for axis in beside["option"]["parallelAxis"]]
    assert kept == [axis["nameLocation"] for axis in axes], "back as it was when the window is wide again"


def test_the_name_of_a_grid_goes_down_with_it() -> None:
    names = [f"a long name {number}" for number in range(4)]
    option = base(
        title=[{"text": "one", "top": 30}, {"text": "two", "top": 130}], legend=legend(data=names),
        grid=[{"top": 70}, {"top": 170}], series=[],
    )  # fmt: skip
    fitted = laid_out(Chart("two", "Two grids.", option, 300)).option["media"][0]["option"]
    more = ROW * (legend_rows(option, PHONE) - 1)
    assert more > 0 and [each["top"] for each in fitted["grid"]] == [70 + more, 170 + more]
    assert [each["top"] for each in fitted["title"]] == [30 + more, 130 + more]
