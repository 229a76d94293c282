"""Many problems of one workload: a map of the modes that win."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.report import draw
from autotune.report.draw import cut, shown
from autotune.report.view import Chart, Option, Table, View
from autotune.report.views.crossover import colours_of, margin_text
from autotune.results.crossover import Point, point, sizes_of, speedup_of
from autotune.results.figures import device_text, problem_text
from autotune.results.regimes import title_of
from autotune.results.study import Study

EXPLAINED = (
    "The colour is the mode that wins. The number is how much longer the next mode takes; hatched where that is within "
    "the noise, without a number where no other mode was measured."
)


@dataclass(frozen=True)
class Line:
    """Problems that differ in one size alone."""

    name: str
    problem: dict[str, object]
    points: dict[int, Point]


@dataclass(frozen=True)
class Field:
    """All studies of a workload on one machine, in one regime."""

    place: int
    first: Study
    size: str
    """The size in which the problems differ most."""
    common: dict[str, object]
    lines: list[Line]

    @property
    def sizes(self) -> list[int]:
        return sorted({size for line in self.lines for size in line.points})

    @property
    def points(self) -> list[Point]:
        return [each for line in self.lines for each in line.points.values()]


def views(studies: Iterable[Study]) -> list[View]:
    """The map of each workload that has several problems on one machine."""
    return [map_view(field) for field in fields_of(studies)]


def fields_of(studies: Iterable[Study]) -> list[Field]:
    """Finished studies of several sizes, by workload, machine and regime; of equal problems the first."""
    groups: dict[tuple[Any, ...], list[Study]] = defaultdict(list)
    for study in studies:
        if study.result is not None:
            key = study.key
            machine = (key.world_size, key.device, key.arch, key.interconnect)
            groups[key.workload, machine, key.regime].append(study)
    found: list[Field] = []
    for group in groups.values():
        values = {name: {study.problem.get(name) for study in group} for name in sizes_of(group[0].problem)}
        size = max(values, key=lambda name: len(values[name]), default="")
        if size and len(values[size]) > 1:
            found.append(_field(len(found), size, group))
    return found


def _field(place: int, size: str, group: Sequence[Study]) -> Field:
    names = list(dict.fromkeys(name for study in group for name in study.problem if name not in (size, "world_size")))
    differing = [name for name in names if len({json.dumps(study.problem.get(name)) for study in group}) > 1]
    lines: dict[str, Line] = {}
    for study in group:
        at = sizes_of(study.problem).get(size)
        if at is not None:
            rest = {name: study.problem[name] for name in differing if name in study.problem}
            told = problem_text(rest) or "all"
            lines.setdefault(told, Line(told, study.problem, {})).points.setdefault(at, point(study, at))
    common = {name: group[0].problem[name] for name in names if name not in differing and name in group[0].problem}
    return Field(place, group[0], size, common, list(lines.values()))


def map_view(field: Field) -> View:
    modes = "; ".join(f"{line.name}: {', '.join(_cell(each) for each in line.points.values())}" for line in field.lines)
    chart = Chart(
        f"map-{field.place}", f"Map of modes by {shown(field.size)}. {modes}.", map_options(field),
        110 + 38 * len(field.lines),
    )  # fmt: skip
    rows = [
        [line.name, *(_cell(line.points[size]) if size in line.points else "" for size in field.sizes)]
        for line in field.lines
    ]
    table = Table([field.size, *map(str, field.sizes)], rows, "l" + "l" * len(field.sizes))
    title = f"{field.first.title}: which mode wins at which {shown(field.size)}"
    return View(f"map-{field.place}", title, f"{_where(field)} {EXPLAINED}", [chart], [table])


def map_options(field: Field) -> Option:
    """A cell for each problem; cells are drawn by the page's script."""
    colours = colours_of(field.points)
    modes = list(colours)
    sizes = field.sizes
    data: dict[str, list[Option]] = {mode: [] for mode in modes}
    for row, line in enumerate(field.lines):
        for size, each in line.points.items():
            told = f"{shown(field.size)} {size}, {line.name}: {shown(each.mode) or 'kernel'}\n{_speedup(each)}"
            data[each.mode].append(
                {
                    "value": [sizes.index(size), row, int(each.tied), _margin(each)],
                    "name": f"{told}\n{margin_text(each)}",
                }
            )
    series = [
        {"type": "custom", "name": shown(mode) or "kernel", "renderItem": "cell", "data": cells, "clip": False,
         "color": colours[mode], "dimensions": ["column", "row", "tied", {"name": "text", "type": "ordinal"}],
         "encode": {"x": "column", "y": "row"}}
        for mode, cells in data.items()
    ]  # fmt: skip
    columns = {"type": "category", "data": [str(size) for size in sizes], "name": cut(shown(field.size), 30),
               "nameLocation": "middle", "nameGap": 26, "axisTick": {"show": False},
               "axisLabel": {"hideOverlap": True}}  # fmt: skip
    rows = draw.names_axis([line.name for line in field.lines])
    rows["axisLabel"]["width"] = 150
    return draw.base(
        grid={"left": 8, "right": 12, "top": 40, "bottom": 44},
        legend=draw.legend(data=[shown(mode) or "kernel" for mode in modes], selectedMode=False),
        xAxis=columns, yAxis=rows, series=series,
    )  # fmt: skip


def _where(field: Field) -> str:
    common = problem_text(field.common)
    regime = title_of(field.first.key, field.first.regime)
    return f"{common + ' ' if common else ''}on {device_text(field.first.key)}, {regime}."


def _speedup(of: Point) -> str:
    found = speedup_of(of)
    return found.against(shown(of.result.speedups[0].baseline)) if found is not None else "not compared"


def _margin(of: Point) -> str:
    return f"+{100 * (of.margin.value - 1):.0f} %" if of.margin is not None and not of.tied else ""


def _cell(of: Point) -> str:
    tie = "a tie with " + of.next_mode if of.tied else _margin(of)
    return f"{of.mode or 'kernel'} {tie}".strip()
