"""The winner under other routings, of a mixture of experts: a bar for it and one for its fastest baseline, for each."""

from __future__ import annotations

from autotune.report.view import (
    COLOURS,
    WINNER,
    Chart,
    Option,
    Table,
    View,
    base,
    legend,
    names_axis,
    shown,
    time_axis,
    whiskers,
)
from autotune.report.views.headline import interval
from autotune.results.result import Result
from autotune.results.routings import EXPLAINED, HEADER, NOT_MEASURED, cells
from autotune.results.study import Study
from autotune.text import microseconds

SERIES = {"winner": WINNER, "fastest baseline": COLOURS[0]}


def view(study: Study) -> View | None:
    """None without a winner, or for a problem without a routing."""
    report = study.result
    if report is None or not report.routings:
        return None
    title = "Under other routings"
    if len(report.routings) == 1:
        return View("routings", title, NOT_MEASURED)
    rows = [cells(row, report.regime) for row in report.routings]
    label = f"Bars: the winner and its fastest baseline under {len(rows)} routings."
    chart = Chart("routings", label, options(report), height=90 + 44 * len(rows))
    return View("routings", title, EXPLAINED, [chart], [Table(HEADER, rows, "lrrr")])


def options(report: Result) -> Option:
    """A group of two bars for each routing."""
    series: list[Option] = []
    for slot, (name, colour) in enumerate(SERIES.items()):
        latencies = [row.latency if slot == 0 else row.baseline_latency for row in report.routings]
        drawn = [(place, each, each.of(report.regime)) for place, each in enumerate(latencies) if each is not None]
        values = {place: round(value, 3) for place, _, value in drawn}
        bars = [{"value": values.get(place), "name": shown(f"{row.routing}, {name}")}
                for place, row in enumerate(report.routings)]  # fmt: skip
        series.append({"type": "bar", "name": name, "data": bars, "itemStyle": {"color": colour, "borderRadius": 2},
                       "barMaxWidth": 16, "barGap": "15%", "barCategoryGap": "30%"})  # fmt: skip
        series.append(
            whiskers(
                [
                    (place, *interval(each, report.regime), slot, len(SERIES), microseconds(value))
                    for place, each, value in drawn
                ]
            )
        )
    return base(
        grid={"left": 8, "right": 90, "top": 40, "bottom": 24},
        legend=legend(data=list(SERIES), selectedMode=False),
        xAxis=time_axis(min=0),
        yAxis=names_axis([shown(row.routing + ", tuned for" * row.tuned_for) for row in report.routings]),
        series=series,
    )
