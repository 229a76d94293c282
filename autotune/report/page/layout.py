"""Layout by width: on a phone a legend has more rows, names beside bars are shorter, and a chart is higher.

All of it is plain dicts. ECharts takes the option of its width by ``media``, the style sheet takes the height.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.report import draw
from autotune.report.view import Chart, Option

ROW = 22
"""Pixels of a legend's row."""

SYMBOL, LETTER, GAP = 30, 7, 10
"""Pixels of a legend's symbol, at most of a letter, and between two entries."""


@dataclass(frozen=True)
class Room:
    """The room, in pixels, that charts up to a width are laid out for."""

    width: int
    """The narrowest chart."""
    names: int
    """Width of names beside bars, which are cut there."""


PHONE, SCREEN = Room(width=310, names=125), Room(width=draw.NARROW, names=draw.NAME_WIDTH)
"""Room up to NARROW pixels, and above."""


@dataclass(frozen=True)
class Laid:
    """A chart's option for all widths, and its heights in pixels."""

    option: Option
    phone: int
    screen: int


def laid_out(chart: Chart) -> Laid:
    """Charts that stand beside each other are as narrow on a screen as on a phone."""
    option, wide = chart.option, PHONE if chart.small else SCREEN
    media = [*draw.up_to(draw.NARROW, _fitted(option, PHONE), _fitted(option, wide)), *option.get("media", [])]
    heights = [chart.height + ROW * (legend_rows(option, room) - 1) for room in (PHONE, wide)]
    return Laid({**option, "media": media}, *heights)


def legend_rows(option: Option, room: Room) -> int:
    """The rows that a chart's legend takes, at least 1: that one is in the chart's own height."""
    if "legend" not in option:
        return 1
    rows, left = 1, room.width
    for name in option["legend"].get("data") or _series_names(option):
        width = SYMBOL + min(LETTER * len(name), draw.NAME_WIDTH)
        if width > left and left < room.width:
            rows, left = rows + 1, room.width
        left -= width + GAP
    return rows


def _series_names(option: Option) -> list[str]:
    """Names of the series, for a legend without names of its own."""
    return list(dict.fromkeys(series["name"] for series in option["series"] if "name" in series))


def _fitted(option: Option, room: Room) -> Option:
    """The parts that a room's width decides: the space above a grid and its name, and names beside bars."""
    found: Option = {}
    more = ROW * (legend_rows(option, room) - 1)
    if isinstance(option.get("title"), list):
        found["title"] = [{"top": title["top"] + more} for title in option["title"]]
    if "legend" in option:
        found["grid"] = [{"top": grid["top"] + more} if "top" in grid else {} for grid in _several(option["grid"])]
    axes = _several(option.get("yAxis", {}))
    if any(_is_of_names(axis) for axis in axes):
        found["yAxis"] = [{"axisLabel": {"width": room.names}} if _is_of_names(axis) else {} for axis in axes]
    return found


def _is_of_names(axis: Mapping[str, Any]) -> bool:
    return bool(axis.get("axisLabel", {}).get("width") == draw.NAME_WIDTH)


def _several(value: Any) -> Sequence[Mapping[str, Any]]:
    return value if isinstance(value, list) else [value]
