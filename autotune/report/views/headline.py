"""The headline: the winner, the baselines and both limits as bars on one axis."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.outcome import Latency, Regime
from autotune.report import draw
from autotune.report.draw import COLOURS, GREY, WINNER
from autotune.report.view import Chart, Option, Table, View
from autotune.results.figures import has_rounds, latency_text, microseconds, plain, ratio, relative_error, resource_text
from autotune.results.library import GRAPH, baseline_name, libraries
from autotune.results.regimes import overhead_text, title_of
from autotune.results.result import Limit, Result
from autotune.results.study import Study
from autotune.text import counted

BY_ROUNDS = (
    "Times are medians over the rounds of the finals, in which all took turns; ± is a 95 % interval over the rounds, "
    "of a ratio over the ratios within each round, so that changes that hit both alike cancel."
)

BY_SPREAD = (
    "Times are medians over calls; ± is half the distance from the 20th to the 80th percentile, which does not cover "
    "changes between rounds."
)

SKEW = " Skew: time between the end of the fastest and of the slowest rank."

REGIMES = (
    " In a graph: the GPU's time alone. Pipelined: eager calls, the host running ahead. Isolated: one eager call on an "
    "idle GPU."
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
    chart = Chart("headline", label, options(report), height=80 + 34 * len(rows))
    title = "Against the library" if libraries(report.key) else "Against the baselines"
    notes = [*_elsewhere(report), overhead_text(report.latency)]
    return View("headline", title, _explained(report), [chart], [table(report), *roofline(report)], notes)


def _explained(report: Result) -> str:
    called, limit = libraries(report.key), report.limit
    text = ""
    if called:
        text += f"{baseline_name(report.key, 'bsp eager')}: one after the other, so that nothing overlaps. "
    if limit is not None:
        text += f"Perfect overlap would take as long as the slower part, {_part(limit.slowest)}{_hidden(limit)}. "
    text += BY_ROUNDS if has_rounds(report.latency, report.regime) else BY_SPREAD
    return text + SKEW + REGIMES * (len(regimes(report)) > 1 and not report.key.is_interpreted)


def _hidden(limit: Limit) -> str:
    """The overlap efficiency in words; empty where the winner hides nothing, or more than there is."""
    if limit.efficiency is None or not 0 < limit.efficiency <= 1:
        return ""
    return f"; of what the fastest baseline takes beyond that, the winner saves {100 * limit.efficiency:.0f} %"


def _elsewhere(report: Result) -> list[str]:
    """The winner against the fastest baseline in other regimes than it was tuned for, unless it is the same there."""
    own = {(each.baseline, each.ratio.brief) for each in report.verdicts if each.regime is report.regime}
    return [
        f"{title_of(report.key, each.regime).capitalize()}: "
        f"{each.ratio.against(baseline_name(report.key, each.baseline))} "
        f"({microseconds(each.winner_microseconds)} and {microseconds(each.baseline_microseconds)})."
        for each in report.verdicts
        if own and (each.baseline, each.ratio.brief) not in own
    ]


def options(report: Result) -> Option:
    """A bar for each of winner, baselines and parts, in the regime tuned for; perfect overlap as a line."""
    rows, data, ends = bars(report), [], []
    colours = {"winner": WINNER, "baseline": COLOURS[0], "part": GREY}
    for place, bar in enumerate(rows):
        regime = Regime.GRAPH if bar.kind == "part" else report.regime
        value, name = bar.latency.of(regime), f"{plain(bar.name)}\n{latency_text(bar.latency, regime)}"
        data.append({"value": round(value, 3), "name": name, "itemStyle": {"color": colours[bar.kind]}})
        ends.append((place, *interval(bar.latency, regime), 0, 1, microseconds(value)))
    bar_series: Option = {"type": "bar", "data": data, "itemStyle": {"borderRadius": 2}, "barMaxWidth": 16}
    if report.limit is not None:
        line = draw.line_at(report.limit.parts[report.limit.slowest].median, "perfect overlap", vertical=True)
        bar_series["markLine"] = draw.mark_lines([line])
    names = [
        {"value": plain(_short(rows, place)), "textStyle": {"fontWeight": "bold" if row.kind == "winner" else "normal"}}
        for place, row in enumerate(rows)
    ]
    return draw.base(
        grid={"left": 8, "right": 90, "top": 30, "bottom": 24},
        xAxis=draw.time_axis(min=0),
        yAxis=draw.names_axis(names, overflow="break"),
        series=[bar_series, draw.whiskers(ends)],
    )


def bars(report: Result) -> list[Bar]:
    """Winner, baselines, each called eagerly and then as a graph, and the limits: parts alone, and the roofline."""
    mode = report.config.get("mode")
    name = f"winner: {plain(mode)}" if mode is not None else "winner"
    others = []
    for each in sorted(report.speedups, key=lambda each: each.baseline.rsplit(" ", 1)):
        if each.is_winner:
            name = f"winner: {baseline_name(report.key, each.baseline)}"
        else:
            others.append(each)
    found = [Bar(name, report.latency, "winner")]
    found += [Bar(baseline_name(report.key, each.baseline), each.latency, "baseline") for each in others]
    parts = report.limit.parts if report.limit is not None else {}
    found += [Bar(_part(part), latency, "part") for part, latency in parts.items()]
    if report.roofline is not None:
        limit = report.roofline.limit
        name = f"roofline ({resource_text(report.roofline.slowest)})"
        found.append(Bar(name, Latency(limit, limit, limit, 0.0, 1), "part"))
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
    limit = report.limit
    shares = {_part(part): share.figures for part, share in limit.shares.items()} if limit is not None else {}
    rows = []
    for bar in bars(report):
        known = [_text(bar, regime) for regime in measured]
        compared = ""
        if bar.kind == "baseline" and not report.key.is_interpreted:
            found = ratio(bar.latency, report.latency, report.regime)
            compared = f"{found.figures} times as fast" if found.is_told else found.text
        if bar.kind == "part":
            share = shares.get(bar.name, f"{bar.latency.median / report.latency.median:.2f}")
            compared = f"{share} of its time"
        skew = "" if bar.kind == "part" else microseconds(bar.latency.skew)
        rows.append([bar.name, *known, skew, compared])
    names = [title_of(report.key, each) for each in measured] if len(measured) > 1 else ["time"]
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


def _part(name: str) -> str:
    """``GEMM alone``."""
    return f"{'GEMM' if name == 'gemm' else plain(name).replace('_', '-')} alone"


def _short(rows: list[Bar], place: int) -> str:
    """A bar's name beside the one above it."""
    name = rows[place].name
    return f"the same{GRAPH}" if place and name == rows[place - 1].name + GRAPH else name


def _rate(resource: str, per_microsecond: float) -> str:
    flops = resource == "flops"
    return f"{per_microsecond / 1e6:.0f} TFLOP/s" if flops else f"{per_microsecond / 1e3:.0f} GB/s"


def _text(bar: Bar, regime: Regime) -> str:
    if bar.kind == "part" and regime is not Regime.GRAPH:
        return ""
    if len(bar.latency.rounds) < 2 and bar.kind == "part":
        return microseconds(bar.latency.median)
    return latency_text(bar.latency, regime) if bar.latency.knows(regime) else "not measured"
