"""Crossovers: over the sizes of otherwise equal problems, which mode wins, by how much, and where it is a tie."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autotune.report import draw
from autotune.report.draw import GREY, shown
from autotune.report.view import Chart, Option, Table, View
from autotune.results.crossover import NEAREST, Point, Range, claim, families, free_sizes, point, ranges, speedup_of
from autotune.results.figures import device_text, latency_text, problem_text
from autotune.results.order import known_workload
from autotune.results.regimes import title_of
from autotune.results.study import Study


def views(studies: Iterable[Study]) -> list[View]:
    """One for each family of problems with two sizes or more."""
    found = []
    for place, (name, members) in enumerate(families(studies)):
        points = [point(study, size) for size, study in members]
        first = members[0][1]
        rest = {field: value for field, value in first.problem.items() if field != name}
        where = f"{device_text(first.key)}, {title_of(first.key, first.regime)}"
        told = claimed(name, points)
        text = f"{problem_text(rest)} on {where}. {told}{told and '. '}A hollow bar: the next mode is within the noise."
        modes = ", ".join(f"{each.size}: {each.mode}" for each in points)
        chart = Chart(f"crossover-{place}", f"Modes by {name}: {modes}.", options(name, points), 80 + 30 * len(points))
        title = f"{first.title}: the winner at each {shown(name)}"
        tables = [table(name, points)]
        if first.key.is_kernel or name in free_sizes(first.key):
            tables.append(served(name, points))
        found.append(View(f"crossover-{place}", title, text, [chart], tables))
    return found


def claimed(name: str, points: Sequence[Point]) -> str:
    """The range's claim, where there are ratios."""
    ratios = [(each.result.winner.verified, ratio.value) for each in points if (ratio := speedup_of(each)) is not None]
    searched, verified = ([ratio for kind, ratio in ratios if kind is wanted] for wanted in (False, True))
    return claim(f"{name}={points[0].size} to {points[-1].size}", searched, verified)


def colours_of(points: Sequence[Point]) -> dict[str, str]:
    """A colour for each mode that won, the same for all problems of a workload if its space is known."""
    won = list(dict.fromkeys(point.mode for point in points))
    key = points[0].result.key
    workload = None if key.is_kernel else known_workload(key.workload)
    modes = [*workload.space.modes, *won] if workload is not None else won
    colours = draw.mode_colours(list(dict.fromkeys(modes)))
    return {mode: colours[mode] for mode in dict.fromkeys(modes) if mode in won}


def options(name: str, points: Sequence[Point]) -> Option:
    """The speedup over the fastest baseline, coloured by the winner's mode."""
    colours = colours_of(points)
    modes = list(colours)
    ratios = [speedup_of(each) for each in points]
    series: list[Option] = []
    for mode in modes:
        data: list[Option] = []
        for each, ratio in zip(points, ratios, strict=True):
            if each.mode != mode or ratio is None:
                data.append({"value": None})
                continue
            style: Option = {"color": "transparent", "borderColor": colours[mode], "borderType": "dashed"}
            told = f"{shown(name)} {each.size}: {shown(mode)}, {ratio.text}\n{margin_text(each)}"
            data.append({"value": round(ratio.value, 4), "name": told, **({"itemStyle": style} if each.tied else {})})
        series.append({"type": "bar", "name": shown(mode) or "kernel", "stack": "one", "data": data, "barMaxWidth": 16,
                       "color": colours[mode]})  # fmt: skip
    even = {"xAxis": 1, "lineStyle": {"color": GREY, "type": "dashed"}, "label": {"show": False}}
    series[0]["markLine"] = draw.mark_lines([even])
    intervals = [
        (place, ratio.value - ratio.error, ratio.value + ratio.error, 0, 1, f"{ratio.value:.2f}")
        for place, ratio in enumerate(ratios)
        if ratio is not None
    ]
    return draw.base(
        grid={"left": 8, "right": 60, "top": 40, "bottom": 24},
        legend=draw.legend(data=[shown(mode) or "kernel" for mode in modes], selectedMode=False),
        xAxis={"type": "value", "min": 0, "name": "times as fast", "nameLocation": "middle", "nameGap": 24},
        yAxis=draw.names_axis([f"{shown(name)} {each.size}" for each in points]),
        series=[*series, draw.whiskers(intervals)],
    )


def table(name: str, points: Sequence[Point]) -> Table:
    rows = []
    for each in points:
        first = each.result.speedups[0] if each.result.speedups else None
        compared = [first.text, first.baseline] if first is not None else ["", ""]
        latency = latency_text(each.result.latency, each.result.regime)
        how = "verifying" if each.result.winner.verified else "search"
        rows.append([str(each.size), how, each.mode, latency, *compared, margin_text(each)])
    return Table([name, "by", "mode", "latency", "times as fast", "as", "next mode"], rows, "rllrrll")


def served(name: str, points: Sequence[Point]) -> Table:
    """The stretches that look-ups serve, and the measurements behind each."""
    rows: list[list[str]] = []
    for each in ranges(points):
        if rows and int(rows[-1][1]) + 1 < each.first:
            rows.append([str(int(rows[-1][1]) + 1), str(each.first - 1), "", "the default", "", ""])
        rows.append([str(each.first), str(each.last), each.mode, each.source, measured_text(name, each),
                     speedup_text(each)])  # fmt: skip
    return Table([f"from {name}", "to", "mode", "served as", "measured at", "times as fast"], rows, "rrllll")


def measured_text(name: str, of: Range) -> str:
    """``m=512`` or ``m=512 to 4096, 5 sizes``."""
    first, last = of.points[0].size, of.points[-1].size
    return f"{name}={first}" if first == last else f"{name}={first} to {last}, {len(of.points)} sizes"


def speedup_text(of: Range) -> str:
    """The worst and the best; there alone, if it is of the nearest size."""
    if not of.speedups:
        return ""
    worst, best = of.speedups[0], of.speedups[-1]
    told = f"{worst:.2f}" if worst == best else f"{worst:.2f} to {best:.2f}"
    return f"{told} there" if of.source == NEAREST else told


def margin_text(of: Point) -> str:
    if of.margin is None:
        return "no other mode measured"
    tie = ", a tie" if of.tied else ""
    return f"{shown(of.next_mode)} takes {of.margin.value:.2f} ± {of.margin.error:.2f} times as long{tie}"
