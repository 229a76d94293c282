"""The winner under other routings of a mixture, or lengths of a batch: a bar for it and one for its fastest baseline,
for each.
"""

from __future__ import annotations

from autotune.db import CacheKey
from autotune.outcome import Regime
from autotune.report import draw
from autotune.report.draw import COLOURS, WINNER
from autotune.report.view import Chart, Option, Table, View
from autotune.report.views.headline import interval
from autotune.results.figures import latency_text, microseconds, plain
from autotune.results.library import baseline_name
from autotune.results.result import Result
from autotune.results.routings import NOT_TIMED, UnderRouting, inputs_named
from autotune.results.study import Study

EXPLAINED = {
    "routings": "Winner and its fastest baseline, checked and measured in turns, with tokens of other routings than "
    "the one tuned for. zipf 1: the i-th most popular expert is chosen as if with weight 1/i. One expert: every token "
    "has the same expert, and any others.",
    "lengths": "Winner and its fastest baseline, checked and measured in turns, with sequences of other lengths than "
    "those tuned for. even: all as long as they may be. geometric: from the longest down to a 75th of it. one-long: "
    "one such, and the others a sixteenth of it. mixed: these in turn.",
}

NOT_MEASURED = (
    "The winner's time under other {} was not measured: --effort quick leaves it out, as does a short --budget."
)

HEADER = ["winner", "fastest baseline", "times as fast"]

SERIES = {"winner": WINNER, "fastest baseline": COLOURS[0]}


def view(study: Study) -> View | None:
    """None without a winner, or for a problem without such inputs."""
    report = study.result
    if report is None or not report.routings:
        return None
    name = inputs_named(report.key)
    title = f"Under other {name}"
    if len(report.routings) == 1:
        return View("routings", title, NOT_MEASURED.format(name))
    rows = [_cells(row, report.key) for row in report.routings]
    label = f"Bars: the winner and its fastest baseline under {len(rows)} {name}."
    chart = Chart("routings", label, options(report), height=90 + 44 * len(rows))
    return View("routings", title, EXPLAINED[name], [chart], [Table([name.removesuffix("s"), *HEADER], rows, "lrrr")])


def _cells(row: UnderRouting, key: CacheKey) -> list[str]:
    if row.latency is None:
        return [row.title, NOT_TIMED, "", ""]
    regime = Regime(key.regime)
    first, ours = row.speedup, latency_text(row.latency, regime)
    if first is None:
        return [row.title, ours, "not measured", ""]
    theirs = f"{baseline_name(key, first.baseline)}: {latency_text(first.latency, regime)}"
    return [row.title, ours, theirs, "" if first.is_winner else first.text]


def options(report: Result) -> Option:
    """A group of two bars for each routing."""
    series: list[Option] = []
    for slot, (name, colour) in enumerate(SERIES.items()):
        latencies = [row.latency if slot == 0 else row.other for row in report.routings]
        drawn = [(place, each, each.of(report.regime)) for place, each in enumerate(latencies) if each is not None]
        values = {place: round(value, 3) for place, _, value in drawn}
        bars = [{"value": values.get(place), "name": plain(f"{row.routing}, {name}")}
                for place, row in enumerate(report.routings)]  # fmt: skip
        series.append({"type": "bar", "name": name, "data": bars, "itemStyle": {"color": colour, "borderRadius": 2},
                       "barMaxWidth": 16, "barGap": "15%", "barCategoryGap": "30%"})  # fmt: skip
        series.append(
            draw.whiskers(
                [
                    (place, *interval(each, report.regime), slot, len(SERIES), microseconds(value))
                    for place, each, value in drawn
                ]
            )
        )
    return draw.base(
        grid={"left": 8, "right": 90, "top": 40, "bottom": 24},
        legend=draw.legend(data=list(SERIES), selectedMode=False),
        xAxis=draw.time_axis(min=0),
        yAxis=draw.names_axis([plain(row.title) for row in report.routings]),
        series=series,
    )
