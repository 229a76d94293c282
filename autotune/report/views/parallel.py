"""Parallel axes: each measured config of a mode as a line through its values, the latency last."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from autotune.config import Config
from autotune.report import draw
from autotune.report.draw import WINNER
from autotune.report.view import Chart, Option, View
from autotune.results.figures import microseconds, plain
from autotune.results.library import mode_name
from autotune.results.study import Study, mode_of

APART = 48
"""Pixels between two axes beside each other; names, which stand above and below in turn, may be twice as wide."""

SIDE_BY_SIDE = {"layout": "horizontal", "left": 75, "right": 60, "top": 44, "bottom": 40}
STACKED = {"layout": "vertical", "left": 110, "right": 30, "top": 30, "bottom": 40}
"""The axes' places: where there is no room beside each other, they lie on top of each other."""

FEWEST_LINES = 4
"""Configs of a mode, below which nothing is shared."""

FAST_TO_SLOW = ("#1d4ed8", "#93b4f5", "#8a94a6")


def view(study: Study) -> View | None:
    """None where too few configs of each mode were measured."""
    modes = shown_modes(study)
    if not modes:
        return None
    charts: list[Chart] = []
    for mode in modes:
        names = study.varied(study.of_mode(mode))
        height = max(420, 90 + 24 * len(names))  # on a phone the axes lie on top of each other
        label = f"Parallel axes of {', '.join(map(plain, names))} and latency in mode {mode_name(study.key, mode)}."
        charts.append(
            Chart(f"parallel-{len(charts)}", label, options(study, mode), height, tab=mode_name(study.key, mode))
        )
    text = "Each line is a measured config of one mode, from its values to its latency; the fastest are the darkest"
    if study.winner in study.measured and mode_of(study.winner) in modes:
        text += f", the orange one is the {'winner' if study.result else 'fastest so far'}"
    hint = "Drag along an axis to keep only the configs that pass there; click the axis to let go."
    return View("parallel", "What the good ones share", f"{text}. Dimensions that never varied are left out.", charts,
                hint=hint)  # fmt: skip


def shown_modes(study: Study) -> list[str]:
    """Modes of which enough was measured, the winner's first, then from the fastest on."""
    by_mode = {mode: study.of_mode(mode) for mode in map(mode_of, study.measured)}
    own = mode_of(study.winner) if study.winner is not None else ""
    enough = [mode for mode, configs in by_mode.items() if len(configs) >= FEWEST_LINES]
    return sorted(enough, key=lambda mode: (mode != own, min(by_mode[mode].values())))


def options(study: Study, mode: str) -> Option:
    """Categories in the dimensions' order; where there is no room beside each other, axes lie on top of each other."""
    found = study.of_mode(mode)
    names, latencies = study.varied(found), list(found.values())
    high = draw.ceiling(latencies)
    axes = [axis(study, mode, name, place) for place, name in enumerate(names)]
    last = {"dim": len(names), "name": "latency", "type": "value", "max": high, "min": "dataMin", "inverse": True}
    last |= {"axisLabel": {"showMinLabel": False, "showMaxLabel": False, "formatter": "time"}, "nameLocation": "end"}
    best = min(latencies)
    slowest_first = sorted(found, key=study.microseconds, reverse=True)  # the fastest are drawn over them
    return draw.base(
        parallel={**SIDE_BY_SIDE, "parallelAxisDefault": {
            "nameTruncate": {"maxWidth": 140},
            "nameTextStyle": {"fontSize": 11}, "axisLabel": {"fontSize": 10, "hideOverlap": True},
            "areaSelectStyle": {"width": 18, "color": WINNER, "opacity": 0.25, "borderColor": WINNER}}},
        parallelAxis=[*axes, last],
        visualMap={"show": False, "seriesIndex": 0, "dimension": len(names), "min": best,
                   "max": max(statistics.median(latencies), 1.02 * best), "inRange": {"color": list(FAST_TO_SLOW)}},
        series=[
            {"type": "parallel", "name": "measured", "lineStyle": {"width": 1.2, "opacity": 0.5},
             "inactiveOpacity": 0.03, "activeOpacity": 0.9, "smooth": False,
             "data": [line(study, config, names, high) for config in slowest_first]},
            {"type": "parallel", "name": "winner", "lineStyle": {"width": 4, "opacity": 0.9, "color": WINNER},
             "inactiveOpacity": 0.05, "z": 5,
             "data": [line(study, config, names, high) for config in found if config == study.winner]},
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


def axis(study: Study, mode: str, name: str, place: int) -> Option:
    """A dimension's axis; names stand above and below in turn, so that long ones do not meet."""
    data = [plain(value) for value in study.values(name, study.of_mode(mode))]
    where = "end" if place % 2 == 0 else "start"
    return {"dim": place, "name": plain(name), "type": "category", "data": data, "nameLocation": where, "nameGap": 14}


def line(study: Study, config: Config, names: Sequence[str], high: float) -> Option:
    """A config's values along the axes; what is slower than the last axis goes, ends at its end."""
    value = study.microseconds(config)
    told = f"{microseconds(value)}\n{draw.config_lines(study, config)}"
    return {"value": [*(plain(config[name]) for name in names), round(min(value, high), 3)], "name": told}
