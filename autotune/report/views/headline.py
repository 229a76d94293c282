"""The headline: the winner, the baselines and both limits as bars on one axis, in every regime that was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.outcome import Latency, Regime
from autotune.report import draw
from autotune.report.draw import COLOURS, GREY, WINNER, shown
from autotune.report.view import Chart, Option, Table, View
from autotune.results.figures import (
    efficiency_text,
    has_rounds,
    latency_text,
    microseconds,
    ratio,
    relative_error,
    resource_text,
)
from autotune.results.regimes import conclusion, overhead_text, title_of
from autotune.results.result import Result
from autotune.results.study import Study
from autotune.text import counted

EXPLAINED = (
    "Median over the rounds of the finals, in which all took turns; ± is a 95 % interval over the rounds, of a ratio "
    "over the ratios within each round, so that changes that hit both alike cancel. Skew is slowest minus fastest rank."
)

BY_SPREAD = (
    "Median over iterations; ± is their spread, half the distance from the 20th to the 80th percentile, which does not "
    "cover changes between rounds. Skew is slowest minus fastest rank."
)

REGIMES = (
    " In a graph: the device's time alone. Pipelined: eager calls, the host running ahead. Isolated: one eager call on "
    "an idle GPU."
)


@dataclass(frozen=True)
class Bar:
    name: str
    latency: Latency
    kind: str
    """``winner``, ``baseline`` or ``part``: the last are of the device alone."""


def view(study: Study) -> View | None:
    """None for a study without a winner, and for a decorated kernel, which has neither baselines nor limits."""
    report = study.result
    if report is None or len(bars(report)) < 2:
        return None
    rows = bars(report)
    baselines = counted(len(report.speedups), "baseline")
    label = f"Bars: winner {latency_text(report.latency, report.regime)} against {baselines}."
    chart = Chart("headline", label, options(report), height=90 + 22 * len(rows) * max(1, len(regimes(report))))
    notes = [*(each.text for each in report.verdicts), conclusion(report.verdicts), overhead_text(report.latency)]
    if report.limit is not None and report.limit.efficiency is not None:
        notes.append(f"Overlap efficiency: {efficiency_text(report.limit.efficiency)}.")
    text = EXPLAINED if has_rounds(report.latency, report.regime) else BY_SPREAD
    text += "" if report.key.is_interpreted else REGIMES
    title = "Against the baselines and the limits" if limits(report) else "Against the baselines"
    return View("headline", title, text, [chart], [table(report), *roofline(report)], notes)


def options(report: Result) -> Option:
    """A group of bars for each of winner, baselines and parts; a bar for each regime; the limits as lines."""
    rows, measured = bars(report), regimes(report)
    series, others = [], list(COLOURS)
    for slot, regime in enumerate(measured):
        colour = WINNER if regime is report.regime else others.pop(0)
        series.append(_bars_in(rows, regime, title_of(report.key, regime), colour))
        series.append(_whiskers_in(rows, regime, slot, len(measured)))
    lines = [draw.line_at(value, name, vertical=True) for name, value in limits(report)]
    for line in lines:
        line["label"] = {"show": False}  # its bar has the name
    series[0]["markLine"] = draw.mark_lines(lines)
    names = [{"value": shown(row.name), "textStyle": {"fontWeight": "bold" if row.kind == "winner" else "normal"}}
             for row in rows]  # fmt: skip
    return draw.base(
        grid={"left": 8, "right": 90, "top": 40, "bottom": 24},
        legend=draw.legend(data=[title_of(report.key, each) for each in measured], selectedMode=False),
        xAxis=draw.time_axis(min=0),
        yAxis=draw.names_axis(names),
        series=series,
    )


def bars(report: Result) -> list[Bar]:
    """Winner, baselines from the fastest on, then the limits: parts alone, and the roofline."""
    mode = report.config.get("mode")
    name = f"winner: {shown(mode)}" if mode is not None else "winner"
    found = [Bar(name, report.latency, "winner")]
    # a baseline may be the winner
    others = [each for each in report.speedups if not each.is_winner]
    found += [Bar(each.baseline, each.latency, "baseline") for each in others]
    parts = report.limit.parts if report.limit is not None else {}
    found += [Bar(f"{part} alone", latency, "part") for part, latency in parts.items()]
    if report.roofline is not None:
        limit = report.roofline.limit
        name = f"roofline ({resource_text(report.roofline.slowest)})"
        found.append(Bar(name, Latency(limit, limit, limit, 0.0, 1), "part"))
    return found


def limits(report: Result) -> list[tuple[str, float]]:
    """Both limits, drawn as lines across the bars: perfect overlap, and the roofline."""
    found = []
    if report.limit is not None:
        found.append((f"{report.limit.slowest} alone", report.limit.parts[report.limit.slowest].median))
    if report.roofline is not None:
        found.append((f"roofline ({resource_text(report.roofline.slowest)})", report.roofline.limit))
    return found


def regimes(report: Result) -> list[Regime]:
    """Regimes that the winner or a baseline was measured in; the device's time is always known."""
    latencies = [report.latency, *(each.latency for each in report.speedups)]
    return [regime for regime in Regime if any(latency.knows(regime) for latency in latencies)]


def interval(latency: Latency, regime: Regime) -> tuple[float, float]:
    """The latency's 95 % interval by its rounds, else its spread around it."""
    value, error = latency.of(regime), relative_error(latency, regime)
    if not has_rounds(latency, regime):
        return value * (1 - error), value * (1 + error)
    return value * math.exp(-error), value * math.exp(min(error, 1.0))


def table(report: Result) -> Table:
    measured = regimes(report)
    shares = {f"{part} alone": str(share) for part, share in report.limit.shares.items()} if report.limit else {}
    rows = []
    for bar in bars(report):
        known = [_text(bar, regime) for regime in measured]
        compared = ""
        if bar.kind == "baseline" and not report.key.is_interpreted:
            found = ratio(bar.latency, report.latency, report.regime)
            compared = f"{found} times as fast" if found.is_told else found.text
        if bar.kind == "part":
            share = shares.get(bar.name, f"{bar.latency.median / report.latency.median:.2f}")
            compared = f"{share} of its time"
        skew = "" if bar.kind == "part" else microseconds(bar.latency.skew)
        rows.append([bar.name, *known, skew, compared])
    names = [title_of(report.key, each) for each in measured]
    return Table(["", *names, "skew", "the winner"], rows, "l" + "r" * (len(names) + 2))


def roofline(report: Result) -> list[Table]:
    """The problem's demand on each resource, at the rate measured on this device."""
    if report.roofline is None or report.key.is_interpreted:
        return []
    rows = [
        [resource_text(resource), _rate(resource, rate), microseconds(taken), f"{taken / report.latency.median:.2f}"]
        for resource, rate in report.roofline.rates.items()
        if (taken := report.roofline.times.get(resource)) is not None
    ]
    header = ["resource", "rate", "busy for at least", "share of the winner's time"]
    return [Table(header, rows, "lrrr", "The roofline, at rates measured on this device")]


def _rate(resource: str, per_microsecond: float) -> str:
    flops = resource == "flops"
    return f"{per_microsecond / 1e6:.0f} TFLOP/s" if flops else f"{per_microsecond / 1e3:.0f} GB/s"


def _text(bar: Bar, regime: Regime) -> str:
    if bar.kind == "part" and regime is not Regime.GRAPH:
        return ""
    if len(bar.latency.rounds) < 2 and bar.kind == "part":
        return microseconds(bar.latency.median)
    return latency_text(bar.latency, regime) if bar.latency.knows(regime) else "not measured"


def _drawn(bar: Bar, regime: Regime) -> bool:
    return regime is Regime.GRAPH if bar.kind == "part" else bar.latency.knows(regime)


def _bars_in(rows: Sequence[Bar], regime: Regime, title: str, colour: str) -> Option:
    data: list[Option] = []
    for bar in rows:
        if not _drawn(bar, regime):
            data.append({"value": None})
            continue
        value = bar.latency.of(regime)
        data.append(
            {
                "value": round(value, 3),
                "name": f"{shown(bar.name)}, {title}\n{_text(bar, regime)}",
                "itemStyle": {"color": GREY} if bar.kind == "part" else {"opacity": 1 if bar.kind == "winner" else 0.6},
            }
        )
    return {
        "type": "bar", "name": title, "data": data, "itemStyle": {"color": colour, "borderRadius": 2},
        "barMaxWidth": 16, "barGap": "15%", "barCategoryGap": "30%",
    }  # fmt: skip


def _whiskers_in(rows: Sequence[Bar], regime: Regime, slot: int, slots: int) -> Option:
    return draw.whiskers(
        [
            (place, *interval(bar.latency, regime), slot, slots, microseconds(bar.latency.of(regime)))
            for place, bar in enumerate(rows)
            if _drawn(bar, regime)
        ]
    )
