"""Slices: within one mode, the latencies by each dimension's value; and the neighbours one step from the winner."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from autotune.config import Config, Value
from autotune.report import draw
from autotune.report.draw import COLOURS, GREY, WINNER, shown
from autotune.report.view import Chart, Option, Table, View
from autotune.results.figures import latency_text, microseconds
from autotune.results.study import Study, mode_of
from autotune.text import counted

FEWEST_IN_A_BOX = 5
"""Configs with a value, below which quartiles would say nothing: the dots stand alone."""

CLOSE = 1.25
"""Another mode is sliced too if its best takes less than so many times the winner."""


@dataclass(frozen=True)
class Step:
    """A measured config that differs from the winner in one dimension, and by one step where that has an order."""

    name: str
    value: Value
    config: Config
    ratio: float
    """Latency in the search over the winner's."""
    error: float
    """Error from the spread of the iterations of both."""


def view(study: Study) -> View | None:
    """None where nothing varied within a mode."""
    modes = sliced(study)
    if not modes:
        return None
    charts: list[Chart] = []
    tables = []
    for mode in modes:
        for name in study.varied(list(study.of_mode(mode))):
            label = f"Latency by {shown(name)} in mode {shown(mode)}."
            charts.append(Chart(f"slice-{len(charts)}", label, options(study, mode, name), 230, small=True))
        tables.append(table(study, mode))
    steps = neighbours(study)
    if steps:
        label = f"{counted(len(steps), 'neighbour')} of the winner, by how much longer they take."
        charts.append(Chart("neighbours", label, step_options(study, steps), 110 + 24 * len(steps)))
        tables.append(step_table(study, steps))
    text = "One dot is one measured config; boxes are quartiles, where there are five or more; the orange dot is the "
    text += f"{'winner' if study.result else 'fastest so far'}. "
    text += f"Shown: mode {' and '.join(map(shown, modes))}. " if any(modes) else ""
    text += "Other dimensions vary freely here, so that a difference may be theirs; neighbours differ in one alone."
    return View("slices", "One dimension at a time", text, charts, tables)


def sliced(study: Study) -> list[str]:
    """The winner's mode, and the best other one that comes close, as far as dimensions varied in them."""
    if study.winner is None or not study.measured:
        return []
    own = mode_of(study.winner)
    best: dict[str, float] = {}
    for config in study.measured:
        mode = mode_of(config)
        best[mode] = min(best.get(mode, math.inf), study.microseconds(config))
    limit = CLOSE * min(best.values())
    ranked = sorted((mode for mode in best if mode == own or best[mode] < limit), key=lambda m: (m != own, best[m]))
    return [mode for mode in ranked if study.varied(list(study.of_mode(mode)))][:2]


def options(study: Study, mode: str, name: str) -> Option:
    """Dots beside each other, boxes behind them."""
    configs = study.of_mode(mode)
    values = study.values(name, list(configs))
    ends = draw.bounds(list(configs.values()))
    high = ends["max"]
    dots: list[Option] = []
    for config, latency in configs.items():
        if name in config:
            told = f"{microseconds(latency)}\n{draw.config_lines(config, study.names([config]))}"
            off = {"symbol": "triangle"} if latency > high else {}
            place = values.index(config[name])
            dots.append({"value": [place, round(min(latency, high), 3)], "name": told, **off})
    boxes = [_box([latency for config, latency in configs.items() if config.get(name) == value]) for value in values]
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
    title = shown(name) + (f" ({shown(mode)})" if mode else "")
    return draw.base(
        title=draw.heading(title),
        grid={"left": 8, "right": 12, "top": 40, "bottom": 16},
        xAxis={"type": "category", "data": [shown(value) for value in values], "jitter": 26, "jitterOverlap": True,
               "axisLabel": {"fontSize": 11}},
        yAxis=draw.time_axis("", **ends),
        series=series,
    )  # fmt: skip


def table(study: Study, mode: str) -> Table:
    """Best, median and number of configs for each value."""
    configs, rows = study.of_mode(mode), []
    for name in study.varied(list(configs)):
        for value in study.values(name, list(configs)):
            group = [latency for config, latency in configs.items() if config.get(name) == value]
            middle = microseconds(statistics.median(group))
            rows.append([shown(name), shown(value), microseconds(min(group)), middle, str(len(group))])
    return Table(
        ["dimension", "value", "best", "median", "configs"], rows, "lrrrr", f"In mode {shown(mode)}" if mode else ""
    )


def neighbours(study: Study) -> list[Step]:
    """The measured configs one step from the winner, the fastest first."""
    winner = study.winner
    if winner is None or winner not in study.measured:
        return []
    ours, found = study.measured[winner], []
    for config, latency in study.measured.items():
        differing = [name for name in config if name not in winner or config[name] != winner[name]]
        if set(config) != set(winner) or len(differing) != 1 or differing == ["mode"]:
            continue
        (name,) = differing
        if _one_step(study, name, winner[name], config[name]):
            quotient = latency.of(study.regime) / ours.of(study.regime)
            error = quotient * math.hypot(latency.spread, ours.spread)
            found.append(Step(name, config[name], config, quotient, error))
    return sorted(found, key=lambda step: step.ratio)


def step_options(study: Study, steps: list[Step]) -> Option:
    """A bar for each neighbour: by how many percent it is slower than the winner."""
    winner = study.winner
    assert winner is not None
    names = [_step_name(winner, step) for step in steps]
    data = [
        {"value": round(100 * (step.ratio - 1), 2), "name": f"{name}\n{_percent(step)}, {_verdict(step)}",
         "itemStyle": {"color": GREY if _tied(step) else COLOURS[0]}}
        for name, step in zip(names, steps, strict=True)
    ]  # fmt: skip
    intervals = [
        (place, 100 * (step.ratio - step.error - 1), 100 * (step.ratio + step.error - 1), 0, 1, _percent(step))
        for place, step in enumerate(steps)
    ]
    return draw.base(
        title=draw.heading("One step from the winner"),
        grid={"left": 8, "right": 110, "top": 44, "bottom": 16},
        xAxis={"type": "value", "name": "%", "axisLabel": {"formatter": "{value} %", "hideOverlap": True},
               "nameLocation": "end", "splitNumber": 4},
        yAxis=draw.names_axis(names),
        series=[{"type": "bar", "data": data, "barMaxWidth": 16}, draw.whiskers(intervals)],
    )  # fmt: skip


def step_table(study: Study, steps: list[Step]) -> Table:
    winner = study.winner
    assert winner is not None
    rows = [
        [_step_name(winner, step), latency_text(study.measured[step.config], study.regime), _percent(step),
         _verdict(step)]
        for step in steps
    ]  # fmt: skip
    return Table(["change", "latency", "against the winner", ""], rows, "lrrl", "One step from the winner")


def _box(group: list[float]) -> list[float]:
    if len(group) < FEWEST_IN_A_BOX:
        return []
    first, middle, third = statistics.quantiles(group, n=4, method="inclusive")
    return [min(group), first, middle, third, max(group)]


def _one_step(study: Study, name: str, one: Value, other: Value) -> bool:
    dimension = study.space.dimensions.get(name) if study.space is not None else None
    if dimension is None or not dimension.ordinal or not (dimension.holds(one) and dimension.holds(other)):
        return True
    tried = study.values(name, list(study.of_mode(mode_of(study.winner) if study.winner else "")))
    return abs(tried.index(one) - tried.index(other)) == 1


def _step_name(winner: Config, step: Step) -> str:
    return f"{shown(step.name)} {shown(winner[step.name])} → {shown(step.value)}"


def _percent(step: Step) -> str:
    return f"{100 * (step.ratio - 1):+.1f} ± {100 * step.error:.1f} %"


def _tied(step: Step) -> bool:
    return abs(step.ratio - 1) <= step.error


def _verdict(step: Step) -> str:
    if _tied(step):
        return "a tie"
    return "slower" if step.ratio > 1 else "faster in the search; the finals decided"
