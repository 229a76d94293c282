"""Crossovers: over the sizes of otherwise equal problems, which mode wins, by how much, and where it is a tie."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.report.figures import Ratio, device_text, latency_text, problem_text
from autotune.report.model import Report
from autotune.report.order import known_workload
from autotune.report.page.study import Study, mode_of
from autotune.report.page.view import (
    GREY,
    Chart,
    Option,
    Table,
    View,
    base,
    legend,
    mark_lines,
    mode_colours,
    names_axis,
    shown,
    whiskers,
)


@dataclass(frozen=True)
class Point:
    """A study among those that differ from it in one size."""

    size: int
    mode: str
    report: Report
    next_mode: str
    """The second best; empty where no other was measured."""
    margin: Ratio | None
    """The latency of that mode's best over the winner's, both from the search."""

    @property
    def tied(self) -> bool:
        """True where the next mode is within the noise."""
        return self.margin is not None and self.margin.value - self.margin.error <= 1


def views(studies: Iterable[Study]) -> list[View]:
    """One for each family of problems with two sizes or more."""
    found = []
    for place, (name, members) in enumerate(families(studies)):
        points = [point(study, size) for size, study in members]
        first = members[0][1]
        rest = {field: value for field, value in first.problem.items() if field != name}
        text = (
            f"{problem_text(rest)} on {device_text(first.record.key)}. A hollow bar: the next mode is within the noise."
        )
        modes = ", ".join(f"{each.size}: {each.mode}" for each in points)
        chart = Chart(f"crossover-{place}", f"Modes by {name}: {modes}.", options(name, points), 80 + 30 * len(points))
        title = f"{first.title}: the winner at each {shown(name)}"
        found.append(View(f"crossover-{place}", title, text, [chart], [table(name, points)]))
    return found


def families(studies: Iterable[Study]) -> list[tuple[str, list[tuple[int, Study]]]]:
    """Finished studies that differ in one size alone, with its name, by rising size; of equal ones the first."""
    groups: dict[tuple[Any, ...], list[Study]] = defaultdict(list)
    for study in studies:
        if study.report is not None:
            key, sizes = study.record.key, sizes_of(study.problem)
            words = {name: value for name, value in study.problem.items() if name not in sizes}
            groups[key.workload, key.world_size, key.device, key.regime, json.dumps(words, sort_keys=True)].append(
                study
            )
    found = []
    for group in groups.values():
        values = {name: {study.problem[name] for study in group} for name in sizes_of(group[0].problem)}
        name = max(values, key=lambda each: len(values[each]), default="")
        by_rest: dict[str, dict[int, Study]] = defaultdict(dict)
        for study in group:
            sizes = sizes_of(study.problem)
            if name in sizes:
                size = sizes.pop(name)
                by_rest[json.dumps(sizes, sort_keys=True)].setdefault(size, study)
        found += [(name, sorted(each.items())) for each in by_rest.values() if len(each) > 1]
    return found


def point(study: Study, size: int) -> Point:
    """The winner's mode, and the best of the others in the search."""
    report = study.report
    assert report is not None
    own = mode_of(report.config)
    best: dict[str, Any] = {}
    for config, latency in study.measured.items():
        mode = mode_of(config)
        if mode not in best or latency.of(study.regime) < best[mode].of(study.regime):
            best[mode] = latency
    ours = best.pop(own, None)
    if ours is None or not best:
        return Point(size, own, report, "", None)
    name = min(best, key=lambda mode: best[mode].of(study.regime))
    value = best[name].of(study.regime) / ours.of(study.regime)
    return Point(size, own, report, name, Ratio(value, value * math.hypot(best[name].spread, ours.spread)))


def colours_of(points: Sequence[Point]) -> dict[str, str]:
    """A colour for each mode that won, the same for all problems of a workload if its space is known."""
    won = list(dict.fromkeys(point.mode for point in points))
    key = points[0].report.key
    workload = None if key.is_kernel else known_workload(key.workload)
    modes = [*workload.space.modes, *won] if workload is not None else won
    colours = mode_colours(list(dict.fromkeys(modes)))
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
            told = f"{shown(name)} {each.size}: {shown(mode)}, {ratio}\n{margin_text(each)}"
            data.append({"value": round(ratio.value, 4), "name": told, **({"itemStyle": style} if each.tied else {})})
        series.append({"type": "bar", "name": shown(mode) or "kernel", "stack": "one", "data": data, "barMaxWidth": 16,
                       "color": colours[mode]})  # fmt: skip
    even = {"xAxis": 1, "lineStyle": {"color": GREY, "type": "dashed"}, "label": {"show": False}}
    series[0]["markLine"] = mark_lines([even])
    intervals = [
        (place, ratio.value - ratio.error, ratio.value + ratio.error, 0, 1, f"{ratio.value:.2f}")
        for place, ratio in enumerate(ratios)
        if ratio is not None
    ]
    return base(
        grid={"left": 8, "right": 60, "top": 40, "bottom": 24},
        legend=legend(data=[shown(mode) or "kernel" for mode in modes], selectedMode=False),
        xAxis={"type": "value", "min": 0, "name": "times as fast", "nameLocation": "middle", "nameGap": 24},
        yAxis=names_axis([f"{shown(name)} {each.size}" for each in points]),
        series=[*series, whiskers(intervals)],
    )


def table(name: str, points: Sequence[Point]) -> Table:
    """The same in figures."""
    rows = []
    for each in points:
        first = each.report.speedups[0] if each.report.speedups else None
        compared = [str(first.ratio), first.baseline] if first is not None else ["", ""]
        latency = latency_text(each.report.latency, each.report.regime)
        rows.append([str(each.size), each.mode, latency, *compared, margin_text(each)])
    return Table([name, "mode", "latency", "times as fast", "as", "next mode"], rows, "rlrrll")


def sizes_of(problem: Mapping[str, object]) -> dict[str, int]:
    """The integers of a problem, without the world size."""
    return {
        name: value
        for name, value in problem.items()
        if isinstance(value, int) and not isinstance(value, bool) and name != "world_size"
    }


def speedup_of(of: Point) -> Ratio | None:
    """Over the fastest baseline."""
    return of.report.speedups[0].ratio if of.report.speedups else None


def margin_text(of: Point) -> str:
    """The next mode's time, in words."""
    if of.margin is None:
        return "no other mode measured"
    tie = ", a tie" if of.tied else ""
    return f"{shown(of.next_mode)} takes {of.margin.value:.2f} ± {of.margin.error:.2f} times as long{tie}"
