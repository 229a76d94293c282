"""Parallel axes: each measured config as a line through its values, the mode first and the latency last."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from autotune.config import Config
from autotune.report import draw
from autotune.report.draw import WINNER, shown
from autotune.report.view import Chart, Option, View
from autotune.results.figures import microseconds
from autotune.results.study import Study

ABSENT = "–"
"""The value of a dimension that the config's mode does not have."""

APART = 48
"""Pixels between two axes beside each other; names, which stand above and below in turn, may be twice as wide."""

SIDE_BY_SIDE = {"layout": "horizontal", "left": 75, "right": 60, "top": 44, "bottom": 40}
STACKED = {"layout": "vertical", "left": 110, "right": 30, "top": 30, "bottom": 40}
"""The axes' places: where there is no room beside each other, they lie on top of each other."""

FAST_TO_SLOW = ("#f59e0b", "#3b82f6", "#8a94a6")


def view(study: Study) -> View | None:
    """None where no two measured configs differ."""
    names = study.varied(list(study.measured))
    if not names:
        return None
    text = f"Each line is one of the {len(study.measured)} measured configs, from its mode to its latency; the fastest "
    text += f"are orange, the thick one is the {'winner' if study.result else 'fastest so far'}. {ABSENT}: the mode "
    text += "does not have the dimension. Dimensions that never varied are left out."
    hint = "Drag along an axis to keep only the configs that pass there; click the axis to let go."
    height = max(420, 90 + 24 * len(names))  # on a phone the axes lie on top of each other
    label = f"Parallel axes of {', '.join(map(shown, names))} and latency."
    return View(
        "parallel", "What the good ones share", text, [Chart("parallel", label, options(study), height)], hint=hint
    )


def options(study: Study) -> Option:
    """Categories in the dimensions' order; where there is no room beside each other, axes lie on top of each other."""
    configs = list(study.measured)
    names = study.varied(configs)
    latencies = [study.microseconds(config) for config in configs]
    high = draw.ceiling(latencies)
    axes = [axis(study, name, place) for place, name in enumerate(names)]
    last = {"dim": len(names), "name": "µs", "type": "value", "max": high, "min": "dataMin", "inverse": True}
    last |= {"axisLabel": {"showMinLabel": False, "showMaxLabel": False}, "nameLocation": "end"}
    quarter = statistics.quantiles(latencies, n=4)[1] if len(latencies) > 1 else latencies[0]
    best = min(latencies)
    return draw.base(
        parallel={**SIDE_BY_SIDE, "parallelAxisDefault": {
            "nameTruncate": {"maxWidth": 140},
            "nameTextStyle": {"fontSize": 11}, "axisLabel": {"fontSize": 10, "hideOverlap": True},
            "areaSelectStyle": {"width": 18, "color": WINNER, "opacity": 0.25, "borderColor": WINNER}}},
        parallelAxis=[*axes, last],
        visualMap={"show": False, "seriesIndex": 0, "dimension": len(names), "min": best,
                   "max": max(quarter, 1.02 * best), "inRange": {"color": list(FAST_TO_SLOW)}},
        series=[
            {"type": "parallel", "name": "measured", "lineStyle": {"width": 1.2, "opacity": 0.5},
             "inactiveOpacity": 0.03, "activeOpacity": 0.9, "smooth": False,
             "data": [line(study, config, names, high) for config in by_latency(study)]},
            {"type": "parallel", "name": "winner", "lineStyle": {"width": 4, "opacity": 0.9, "color": WINNER},
             "inactiveOpacity": 0.05, "z": 5,
             "data": [line(study, config, names, high) for config in _winner(study)]},
        ],
        media=draw.up_to(
            max(draw.NARROW, APART * len(names)),
            {"parallel": STACKED, "parallelAxis": [
                {"nameLocation": "start", "nameGap": 12, "nameTruncate": {"maxWidth": 90}} for _ in [*axes, last]]},
            {"parallel": SIDE_BY_SIDE, "parallelAxis": [
                {"nameLocation": each["nameLocation"], "nameGap": 14, "nameTruncate": {"maxWidth": 140}}
                for each in [*axes, last]]},
        ),
    )  # fmt: skip


def axis(study: Study, name: str, place: int) -> Option:
    """A dimension's axis; names stand above and below in turn, so that long ones do not meet."""
    data = [shown(value) for value in study.values(name, list(study.measured))]
    if any(name not in config for config in study.measured):
        data = [ABSENT, *data]
    where = "end" if place % 2 == 0 else "start"
    return {"dim": place, "name": shown(name), "type": "category", "data": data, "nameLocation": where, "nameGap": 14}


def line(study: Study, config: Config, names: Sequence[str], high: float) -> Option:
    """A config's values along the axes; what is slower than the last axis goes, ends at its end."""
    value = study.microseconds(config)
    places = [shown(config[name]) if name in config else ABSENT for name in names]
    told = f"{microseconds(value)}\n{draw.config_lines(config, study.names([config]))}"
    return {"value": [*places, round(min(value, high), 3)], "name": told}


def by_latency(study: Study) -> list[Config]:
    """The slowest first, so that the fastest are drawn over them."""
    return sorted(study.measured, key=study.microseconds, reverse=True)


def _winner(study: Study) -> list[Config]:
    return [study.winner] if study.winner in study.measured and study.winner is not None else []
