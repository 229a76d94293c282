"""Slices: within one mode, the latencies by each dimension's value, those that matter first."""

from __future__ import annotations

import statistics

from autotune.report import draw
from autotune.report.draw import COLOURS, GREY, WINNER
from autotune.report.view import Chart, Option, Table, View
from autotune.report.views.steps import SMALL
from autotune.results.figures import microseconds, plain
from autotune.results.study import Study, mode_of

FEWEST_IN_A_BOX = 5
"""Configs with a value, below which quartiles would say nothing: the dots stand alone."""

FEWEST_SLICED = 8
"""Measured configs of the winner's mode, below which its dimensions say nothing that is not in its few configs."""


def view(study: Study) -> View | None:
    """None where too little of the winner's mode was measured."""
    mode = mode_of(study.winner) if study.winner is not None else ""
    if len(study.of_mode(mode)) < FEWEST_SLICED:
        return None
    charts = [
        Chart(f"slice-{place}", f"Latency by {plain(name)}.", options(study, mode, name), 230, small=True,
              folded=effect < SMALL)
        for place, (name, effect) in enumerate(effects(study, mode))
    ]  # fmt: skip
    text = (
        f"One dot is one measured config of this mode; the {'winner' if study.result else 'fastest so far'} is orange. "
    )
    text += (
        "Boxes are quartiles, where there are five or more. Other dimensions vary freely here, so that a difference "
    )
    text += "may be theirs."
    fold = f"Dimensions whose best values differ by less than {100 * SMALL:.0f} %"
    return View("slices", "One dimension at a time", text, charts, [table(study, mode)], fold=fold)


def effects(study: Study, mode: str) -> list[tuple[str, float]]:
    """The dimensions that varied in a mode, by how much the best with a value is slower than the best with another."""
    configs, found = study.of_mode(mode), []
    for name in study.varied(configs):
        best = [min(group) for group in study.by_value(name, configs).values()]
        found.append((name, max(best) / min(best) - 1))
    return sorted(found, key=lambda each: -each[1])


def options(study: Study, mode: str, name: str) -> Option:
    """Dots beside each other, boxes behind them."""
    configs = study.of_mode(mode)
    groups = study.by_value(name, configs)
    values = list(groups)
    ends = draw.bounds(list(configs.values()))
    high = ends["max"]
    dots: list[Option] = []
    for config, latency in configs.items():
        if name in config:
            told = f"{microseconds(latency)}\n{draw.config_lines(study, config)}"
            off = {"symbol": "triangle"} if latency > high else {}
            place = values.index(config[name])
            dots.append({"value": [place, round(min(latency, high), 3)], "name": told, **off})
    boxes = list(map(_box, groups.values()))
    winner = study.winner
    series: list[Option] = [
        {"type": "boxplot", "data": [{"value": [min(each, high) for each in box]} if box else {"value": []}
                                     for box in boxes],
         "itemStyle": {"color": "transparent", "borderColor": GREY}, "boxWidth": ["30%", "60%"], "silent": True,
         "tooltip": {"show": False}},
        {"type": "scatter", "data": dots, "symbolSize": 6, "color": COLOURS[0], "itemStyle": {"opacity": 0.6}},
    ]  # fmt: skip
    if winner is not None and winner in configs and name in winner:
        point = {"value": [values.index(winner[name]), round(min(configs[winner], high), 3)], "name": "winner"}
        series.append({"type": "scatter", "data": [point], "symbolSize": 11, "color": WINNER, "z": 5})
    return draw.base(
        title=draw.heading(plain(name)),
        grid={"left": 8, "right": 12, "top": 40, "bottom": 24},
        xAxis={"type": "category", "data": [plain(value) for value in values], "jitter": 26, "jitterOverlap": True,
               "axisLabel": {"fontSize": 11}},
        yAxis=draw.time_axis(**ends),
        series=series,
    )  # fmt: skip


def table(study: Study, mode: str) -> Table:
    """Best, median and number of configs for each value."""
    configs, rows = study.of_mode(mode), []
    for name in study.varied(configs):
        for value, group in study.by_value(name, configs).items():
            middle = microseconds(statistics.median(group))
            rows.append([plain(name), plain(value), microseconds(min(group)), middle, str(len(group))])
    return Table(
        ["dimension", "value", "best", "median", "configs"], rows, "lrrrr", f"In mode {plain(mode)}" if mode else ""
    )


def _box(group: list[float]) -> list[float]:
    if len(group) < FEWEST_IN_A_BOX:
        return []
    first, middle, third = statistics.quantiles(group, n=4, method="inclusive")
    return [min(group), first, middle, third, max(group)]
