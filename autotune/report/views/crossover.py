"""Ranges: over the sizes of otherwise equal problems, the speedup, which mode wins, and where it is a tie."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby

from autotune.report import draw
from autotune.report.draw import GREY
from autotune.report.view import Chart, Option, Table, View
from autotune.results.crossover import NEAREST, Point, Range, claim, families, free_sizes, point, ranges
from autotune.results.figures import Ratio, device_text, latency_text, plain, problem_text
from autotune.results.library import baseline_name, mode_name
from autotune.results.order import known_workload
from autotune.results.regimes import tuned_for
from autotune.results.study import Study


def views(studies: Iterable[Study]) -> list[View]:
    """One for each family of problems with two sizes or more."""
    return [_view(f"crossover-{place}", name, members) for place, (name, members) in enumerate(families(studies))]


def around(study: Study, studies: Iterable[Study]) -> View | None:
    """The family that a study belongs to; None if there is none."""
    own = [(name, members) for name, members in families(studies) if any(each.key == study.key for _, each in members)]
    return _view("range", *own[0], here=study) if own else None


def _view(place: str, name: str, members: Sequence[tuple[int, Study]], here: Study | None = None) -> View:
    points, first = [point(study, size) for size, study in members], members[0][1]
    rest = {field: value for field, value in first.problem.items() if field != name}
    told = [f"{problem_text(rest)} on {device_text(first.key)}, for {tuned_for(first.key)}"] if here is None else []
    told += filter(None, [claimed(name, points), borders(name, points)])
    modes = ", ".join(f"{each.size}: {each.mode}" for each in points)
    label = f"Speedup and mode by {plain(name)}: {modes}."
    known = [each for each in points if each.result.ratio is not None]
    charts = [Chart(place, label, options(name, points, here), 320)] if known else []
    text = ". ".join(told) + ". " + "A hollow point: the next mode is within the noise." * any(p.tied for p in points)
    what = "speedup and winner" if charts else "the winner"
    title = f"{f'{first.title}: {what}' if here is None else what.capitalize()} over {plain(name)}"
    tables = [table(name, points)]
    if first.key.is_kernel or name in free_sizes(first.key):
        tables.append(served(name, points))
    return View(place, title, text.strip(), charts, tables)


def claimed(name: str, points: Sequence[Point]) -> str:
    """The range's claim, where there are ratios."""
    ratios = [(each.result.winner.verified, ratio.value) for each in points if (ratio := each.result.ratio) is not None]
    searched, verified = ([ratio for kind, ratio in ratios if kind is wanted] for wanted in (False, True))
    return claim(f"{name}={points[0].size} to {points[-1].size}", searched, verified)


def borders(name: str, points: Sequence[Point]) -> str:
    """``Fastest: push up to m=181, then pull``, with the borders of look-ups; empty where one mode wins everywhere."""
    served = (each for each in ranges(points) if each.source != NEAREST)
    runs = groupby(served, key=lambda each: mode_name(points[0].result.key, each.mode))
    modes = [(mode, list(run)[-1].last) for mode, run in runs]
    told = [f"{mode} up to {plain(name)}={last}" for mode, last in modes[:-1]]
    return f"Fastest: {', then '.join([*told, modes[-1][0]])}" if told else ""


def colours_of(points: Sequence[Point]) -> dict[str, str]:
    """A colour for each mode that won, the same for all problems of a workload if its space is known."""
    won = list(dict.fromkeys(point.mode for point in points))
    workload = known_workload(points[0].result.key)
    modes = [*workload.space.modes, *won] if workload is not None else won
    colours = draw.mode_colours(list(dict.fromkeys(modes)))
    return {mode: colours[mode] for mode in dict.fromkeys(modes) if mode in won}


def options(name: str, points: Sequence[Point], here: Study | None = None) -> Option:
    """The speedup over the fastest baseline as points in the colours of the modes that won, with their intervals."""
    colours, key = colours_of(points), points[0].result.key
    known = [(each, ratio) for each in points if (ratio := each.result.ratio) is not None]
    ends = [(each.size, round(r.value - r.error, 4), round(r.value + r.error, 4)) for each, r in known]
    series: list[Option] = [
        {"type": "line", "name": "speedup", "data": [[each.size, round(ratio.value, 4)] for each, ratio in known],
         "symbol": "none", "silent": True, "lineStyle": {"color": GREY, "width": 1}, "tooltip": {"show": False},
         "markLine": draw.mark_lines([{"yAxis": 1, "name": "as fast as the library", "label": {"show": False},
                                       "lineStyle": {"color": GREY, "type": "dashed"}}])},
        {"type": "custom", "renderItem": "interval", "name": "intervals", "silent": True, "data": ends, "color": GREY,
         "encode": {"x": 0, "y": [1, 2]}, "tooltip": {"show": False}},
    ]  # fmt: skip
    for mode, colour in colours.items():
        data = [_drawn(name, each, ratio, colour, here) for each, ratio in known if each.mode == mode]
        series.append(
            {"type": "scatter", "name": mode_name(key, mode), "data": data, "color": colour, "symbolSize": 11}
        )
    for stretch in [each for each in ranges(points) if each.source != NEAREST][1:]:
        label = {"formatter": str(stretch.first), "position": "end", "color": GREY, "fontSize": 11}
        told = f"from {stretch.first} on: {mode_name(key, stretch.mode)}"
        border = {"xAxis": stretch.first, "name": told, "label": label, "lineStyle": {"color": GREY, "type": "dotted"}}
        series[0]["markLine"]["data"].append(border)
    least = min([1.0, *(low for _, low, _ in ends)])
    return draw.base(
        grid={"left": 8, "right": 24, "top": 44, "bottom": 36},
        legend=draw.legend(data=[mode_name(key, mode) for mode in colours], selectedMode=False),
        xAxis={"type": "log" if points[0].size > 0 else "value", "logBase": 2, "min": points[0].size,
               "max": points[-1].size, "name": plain(name), "nameLocation": "middle", "nameGap": 24,
               "axisLabel": {"hideOverlap": True, "formatter": "{value}"}},
        yAxis={"type": "value", "min": math.floor(20 * least) / 20, "splitNumber": 4,
               "axisLabel": {"formatter": "{value}×"}},
        series=series,
    )  # fmt: skip


def _drawn(name: str, of: Point, ratio: Ratio, colour: str, here: Study | None) -> Option:
    """A point, hollow where the next mode is within the noise, larger where it is the page's own."""
    told = f"{plain(name)} {of.size}: {mode_name(of.result.key, of.mode)}, {ratio.text}\n{margin_text(of)}"
    style = {"color": "transparent" if of.tied else colour, "borderColor": colour, "borderWidth": 2}
    size = 18 if here is not None and of.result.key == here.key else 11
    return {"value": [of.size, round(ratio.value, 4)], "name": told, "itemStyle": style, "symbolSize": size}


def table(name: str, points: Sequence[Point]) -> Table:
    rows = []
    for each in points:
        first = each.result.speedups[0] if each.result.speedups else None
        over = baseline_name(each.result.key, first.baseline) if first is not None else ""
        compared = [first.text if first is not None else "", over]
        latency = latency_text(each.result.latency, each.result.regime)
        how = "verifying" if each.result.winner.verified else "search"
        rows.append([str(each.size), how, each.mode, latency, *compared, margin_text(each)])
    return Table([name, "by", "mode", "latency", "speedup", "over", "next mode"], rows, "rllrrll")


def served(name: str, points: Sequence[Point]) -> Table:
    """The stretches that look-ups serve, and the measurements behind each."""
    rows: list[list[str]] = []
    for each in ranges(points):
        if rows and int(rows[-1][1]) + 1 < each.first:
            rows.append([str(int(rows[-1][1]) + 1), str(each.first - 1), "", "the default", "", ""])
        rows.append([str(each.first), str(each.last), each.mode, each.source, measured_text(name, each),
                     speedup_text(each)])  # fmt: skip
    return Table([f"from {name}", "to", "mode", "served as", "measured at", "speedup"], rows, "rrllll")


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
    return f"{plain(of.next_mode)} takes {of.margin.value:.2f} ± {of.margin.error:.2f} times as long{tie}"
