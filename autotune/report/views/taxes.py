"""The taxes: a waterfall from the bulk-synchronous call to perfect overlap, and what launches and late ranks cost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from autotune.report import draw, waterfall
from autotune.report.draw import COLOURS, GREY
from autotune.report.view import Chart, Option, Table, View
from autotune.report.waterfall import Bar
from autotune.results.figures import plain
from autotune.results.study import Study
from autotune.taxes import ladder
from autotune.taxes.result import Doses, Taxes

TITLE = "What bulk synchrony costs"

EXPLAINED = (
    "Variants of one call, timed in turns. Each gives one thing up: from the library's kernels one after the other "
    "(bulk-synchronous, BSP), called eagerly on an idle GPU, down to the slowest part alone. Grey bars are calls; "
    "between two of them lies what the thing costs, and all of it adds up exactly."
)

COST = COLOURS[4]
"""The colour of what bulk synchrony costs."""

CLEAR = "rgba(0,0,0,0)"


def view(study: Study) -> View | None:
    """None where nobody has run ``tune taxes``."""
    taxes = study.ladder
    if taxes is None:
        return None
    rows = waterfall.bars(taxes)
    told = ", ".join(f"{name}: {text}" for name, text in waterfall.table(taxes)[: len(ladder.TAXES)])
    charts = [Chart("taxes", f"Waterfall of {len(rows)} bars. {told}.", options(taxes), 60 + 26 * len(rows))]
    if taxes.launches:
        label = "Extra microseconds by the number of empty launches between the phases."
        charts.append(Chart("tax-launches", label, responses(taxes.launches, "empty launches", 1.0), 260, small=True))
    if taxes.late:
        most = max(dose for doses in taxes.late.values() for dose in doses)
        size, name = waterfall.unit(most)
        label = "Extra time by how late one rank is; on the dashed line all of it is passed on."
        option = responses(taxes.late, f"{name} late", size, diagonal=True)
        charts.append(Chart("tax-lateness", label, option, 260, small=True))
    notes = [plain(note) for note in waterfall.notes(taxes)]
    text = f"{EXPLAINED} {waterfall.caveat(taxes)}".strip()
    drawn = "\n".join(waterfall.waterfall(taxes))
    return View("taxes", TITLE, text, charts, [table(taxes), summary(taxes)], notes, drawn)


def options(taxes: Taxes) -> Option:
    """Whole calls as grey bars, and between two of them a step, whose whisker is its interval."""
    rows = waterfall.bars(taxes)
    size, unit = waterfall.unit(max(bar.end for bar in rows))
    names = [f"{bar.letter}  {bar.name}" if bar.letter else f"– {bar.name}" for bar in rows]
    hidden = {"itemStyle": {"color": CLEAR}, "tooltip": {"show": False}}
    offsets: list[Option] = [{"value": round(bar.begin / size, 4), **hidden} for bar in rows]
    heights = [_height(bar, size, unit) for bar in rows]
    ends = [
        (place, *_interval(bar, size), 0, 1, f"{waterfall.number(bar.found, size)} {unit}")
        for place, bar in enumerate(rows)
    ]  # fmt: skip
    return draw.base(
        grid={"left": 8, "right": 110, "top": 16, "bottom": 24},
        xAxis=_axis(unit, min=0),
        yAxis=draw.names_axis(names),
        series=[
            {"type": "bar", "stack": "all", "data": offsets, "silent": True, "barMaxWidth": 16},
            {"type": "bar", "stack": "all", "data": heights, "barMaxWidth": 16, "itemStyle": {"borderRadius": 2}},
            draw.whiskers(ends),
        ],
    )


def responses(doses: Mapping[str, Doses], name: str, size: float, *, diagonal: bool = False) -> Option:
    """A line for each rung: how much slower a call becomes by a dose. ``size``: microseconds in the axes' unit."""
    series: list[Option] = []
    for letter, by_dose in doses.items():
        none = statistics.fmean(by_dose[min(by_dose)])
        data = [
            {"value": [dose / size, round((statistics.fmean(rounds) - none) / size, 4)],
             "name": f"{letter}, {plain(ladder.RUNGS[letter])}\n{dose / size:g} {name}: "
                     f"{(statistics.fmean(rounds) - none) / size:+.2f}"}
            for dose, rounds in by_dose.items()
        ]  # fmt: skip
        colour = COLOURS[list(ladder.RUNGS).index(letter) % len(COLOURS)]
        series.append({"type": "line", "name": letter, "data": data, "symbolSize": 6, "color": colour})
    if diagonal:
        most = max(dose for by_dose in doses.values() for dose in by_dose) / size
        series.append({"type": "line", "name": "all passed on", "data": [[0, 0], [most, most]], "symbol": "none",
                       "color": GREY, "lineStyle": {"type": "dashed", "width": 1}, "silent": True})  # fmt: skip
    return draw.base(
        legend=draw.legend(),
        grid={"left": 8, "right": 16, "top": 44, "bottom": 36},
        xAxis={"type": "value", "name": name, "nameLocation": "middle", "nameGap": 24, "splitNumber": 4},
        yAxis=_axis(waterfall.unit(10 * size)[1]),
        series=series,
    )


def _axis(unit: str, **parts: Any) -> Option:
    """An axis of times in a unit."""
    label = {"hideOverlap": True, "formatter": f"{{value}} {unit}"}
    return {"type": "value", "splitNumber": 4, "axisLabel": label, **parts}


def table(taxes: Taxes) -> Table:
    rows = waterfall.bars(taxes)
    size, unit = waterfall.unit(max(bar.end for bar in rows))
    told = [
        [bar.letter, bar.name, waterfall.number(bar.found, size), "" if bar.letter else _meaning(bar.name)]
        for bar in rows
    ]
    return Table(["", "", unit, "what it is"], told, "llrl", "The ladder, from the top down")


def summary(taxes: Taxes) -> Table:
    """The three taxes, slopes and slack."""
    rows = [[name, text.replace("\n", "; ")] for name, text in waterfall.table(taxes)]
    return Table(["", ""], rows, "ll", "The three taxes, and what a launch, a late rank and a barrier cost")


def _height(bar: Bar, size: float, unit: str) -> Option:
    nil = not bar.letter and bar.found.is_nil
    colour = GREY if bar.letter else COST if bar.found.value >= 0 else COLOURS[1]
    text = f"{bar.letter or '–'} {bar.name}: {waterfall.number(bar.found, size)} {unit}"
    return {
        "value": round((bar.end - bar.begin) / size, 4), "name": text,
        "itemStyle": {"color": colour, "opacity": 0.35 if nil else 1},
    }  # fmt: skip


def _interval(bar: Bar, size: float) -> tuple[float, float]:
    """The interval's ends on the axis: around a call's time; around the upper end of a step."""
    below = bar.end - abs(bar.found.value)
    ends = sorted(below + math.copysign(each, each * bar.found.value) for each in (bar.found.low, bar.found.high))
    return max(0.0, ends[0]) / size, max(0.0, ends[1]) / size


def _meaning(name: str) -> str:
    return "; ".join(ladder.MEANINGS[cause] for cause in name.split(" + "))
