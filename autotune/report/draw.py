"""The pieces that the charts' options share: colours, axes, legends, intervals.

Names in an option come from databases and users: ``plain`` makes them text in which nothing is hidden.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from autotune.config import Config
from autotune.outcome import Outcome
from autotune.report.view import Option
from autotune.results.figures import microseconds, plain
from autotune.results.study import Study

WINNER = "#e8590c"
"""The colour of the winner, in all views."""

COLOURS = ("#3b82f6", "#0d9488", "#a855f7", "#a0764a", "#db2777", "#65a30d", "#0891b2", "#9f1239")
"""Colours of modes and series, legible on white and on black."""

GREY = "#8a94a6"
FAILED = "#dc2626"

NARROW = 640
"""Pixels of width up to which a chart is laid out for a phone."""

NAME_WIDTH = 190
"""Pixels of the longest name in a legend or beside a bar; longer ones are cut."""

SYMBOLS = {
    Outcome.INVALID: "circle", Outcome.DID_NOT_COMPILE: "triangle", Outcome.OUT_OF_RESOURCES: "rect",
    Outcome.WRONG_RESULT: "diamond", Outcome.TIMED_OUT: "pin", Outcome.CRASHED: "arrow",
}  # fmt: skip
"""Symbols of the kinds of failure."""


def cut(text: str, longest: int = 40) -> str:
    """The text, or its beginning where it is longer."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def config_lines(study: Study, config: Config) -> str:
    """A config for a tooltip, one dimension a line."""
    return "\n".join(f"{plain(name)} = {plain(config[name])}" for name in study.names([config]))


def base(**parts: Any) -> Option:
    """The options that all charts have in common; a tooltip has the name of what is pointed at, escaped by ECharts."""
    style = "white-space:pre-line;max-width:22rem;font-size:12px;line-height:1.4"
    tooltip = {"trigger": "item", "formatter": "{b}", "confine": True, "extraCssText": style}
    return {"backgroundColor": "transparent", "animation": False, "tooltip": tooltip, "color": list(COLOURS), **parts}


def names_axis(data: Sequence[str | Option], overflow: str = "truncate") -> Option:
    """An axis of names, the first at the top; long ones are cut, or take two lines."""
    label = {"width": NAME_WIDTH, "overflow": overflow, "lineHeight": 13}
    return {"type": "category", "data": list(data), "inverse": True, "axisTick": {"show": False}, "axisLabel": label}


def whiskers(rows: Sequence[tuple[int, float, float, int, int, str]]) -> Option:
    """Intervals over horizontal bars, drawn by the page's script: row, low end, high end, which of how many bars of the
    row, and the text at the high end.
    """
    dimensions = ["row", "low", "high", "slot", "slots", {"name": "text", "type": "ordinal"}]
    return {
        "type": "custom", "renderItem": "whisker", "silent": True, "z": 5, "dimensions": dimensions, "clip": False,
        "data": [[row, round(low, 3), round(high, 3), *rest] for row, low, high, *rest in rows],
        "encode": {"x": ["low", "high"], "y": "row"}, "tooltip": {"show": False},
    }  # fmt: skip


def legend(**parts: Any) -> Option:
    """Above the chart, in as many rows as it takes; long names are cut."""
    return {"top": 0, "itemGap": 10, "textStyle": {"width": NAME_WIDTH, "overflow": "truncate"}, **parts}


def up_to(width: int, narrow: Option, wide: Option) -> list[Option]:
    """Options of charts up to ``width`` pixels wide, and of wider ones; ECharts keeps what a width does not name."""
    return [
        {"query": {"maxWidth": width}, "option": narrow},
        {"query": {"minWidth": width + 1}, "option": wide},
    ]


def heading(text: str, width: int = 280) -> Option:
    """A chart's title; a long one is cut."""
    style = {"fontSize": 13, "width": width, "overflow": "truncate"}
    return {"text": text, "left": 8, "top": 4, "textStyle": style}


def time_axis(**parts: Any) -> Option:
    """An axis of microseconds, whose labels the page's script writes with the unit that suits each."""
    return {"type": "value", "splitNumber": 4, "axisLabel": {"hideOverlap": True, "formatter": "time"}, **parts}


def ceiling(latencies: Sequence[float], keep: Sequence[float] = ()) -> float:
    """The end of an axis of latencies: slow ones must not press the fast ones together; ``keep`` stay in."""
    best = min(latencies)
    upper = statistics.quantiles(latencies, n=4, method="inclusive")[2] if len(latencies) > 1 else best
    wanted = max([min(max(latencies), 2.5 * best, max(1.5 * best, 1.3 * upper)), *keep])
    return 1.04 * wanted


def bounds(latencies: Sequence[float], keep: Sequence[float] = ()) -> Option:
    """An axis of latencies from a little under the lowest to its ``ceiling``, at round numbers."""
    low, high = 0.97 * min([*latencies, *keep]), ceiling(latencies, keep)
    step = nice((high - low) / 5)
    ends = math.floor(low / step) * step, math.ceil(high / step) * step
    return {"min": float(f"{ends[0]:.10g}"), "max": float(f"{ends[1]:.10g}"), "interval": step}


def nice(span: float) -> float:
    """1, 2 or 5 times a power of ten: the span or the next above it."""
    power: float = 10.0 ** math.floor(math.log10(max(span, 1e-9)))
    return float(f"{next(power * factor for factor in (1, 2, 5, 10) if power * factor >= 0.999 * span):.10g}")


def line_at(value: float, text: str, *, vertical: bool = False) -> Option:
    """A dashed line across a chart with a word at its end."""
    place = "start" if vertical else "insideEndTop"  # above a chart whose names begin at the top
    return {
        "xAxis" if vertical else "yAxis": value,
        "name": f"{plain(text)}: {microseconds(value)}",
        "lineStyle": {"color": GREY, "type": "dashed", "width": 1.5},
        "label": {"formatter": cut(plain(text)), "position": place, "color": GREY, "fontSize": 11},
    }


def mark_lines(lines: Sequence[Option]) -> Option:
    return {"symbol": "none", "silent": False, "data": list(lines), "animation": False}


def mode_colours(modes: Sequence[str]) -> dict[str, str]:
    """A colour for each mode, the same in every view."""
    return {mode: COLOURS[place % len(COLOURS)] for place, mode in enumerate(modes)}
