"""The neighbours one step from the winner: what a change of one dimension costs."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.config import Config, Value
from autotune.report import draw
from autotune.report.draw import COLOURS, GREY
from autotune.report.view import Chart, Option, Table, View
from autotune.results.figures import Ratio, latency_text, plain, ratio
from autotune.results.study import Study, mode_of
from autotune.text import counted

SMALL = 0.01
"""A difference below this is not drawn, like one within the noise."""

EXPLAINED = "Configs that differ in one dimension, by one step, and how much longer they took in the search."


@dataclass(frozen=True)
class Step:
    """A measured config that differs from the winner in one dimension, and by one step where that has an order."""

    name: str
    value: Value
    config: Config
    ratio: Ratio
    """Latency in the search over the winner's."""

    @property
    def is_tied(self) -> bool:
        return abs(self.ratio.value - 1) <= self.ratio.error

    @property
    def is_small(self) -> bool:
        return self.is_tied or abs(self.ratio.value - 1) < SMALL


def view(study: Study) -> View | None:
    """None where nothing was measured one step from the winner."""
    steps = neighbours(study)
    if not steps:
        return None
    drawn = [step for step in steps if not step.is_small]
    small = [_step_name(study, step) for step in steps if step.is_small]
    text = EXPLAINED + (f" Within {100 * SMALL:.0f} % or the noise: {', '.join(small)}." if small else "")
    label = f"{counted(len(drawn), 'neighbour')} of the winner, by how much longer they take."
    charts = [Chart("steps", label, options(study, drawn), 40 + 32 * len(drawn))] if drawn else []
    title = f"One step from the {'winner' if study.result else 'fastest so far'}"
    return View("steps", title, text, charts, [table(study, steps)])


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
        if _one_step(study, winner, config, name):
            found.append(Step(name, config[name], config, ratio(latency, ours, study.regime)))
    return sorted(found, key=lambda step: step.ratio.value)


def options(study: Study, steps: list[Step]) -> Option:
    """A bar for each neighbour: by how many percent it is slower than the winner."""
    names = [_step_name(study, step) for step in steps]
    data = [
        {"value": round(100 * (step.ratio.value - 1), 2), "name": f"{name}\n{_percent(step)}, {_verdict(step)}",
         "itemStyle": {"color": GREY if step.is_tied else COLOURS[0]}}
        for name, step in zip(names, steps, strict=True)
    ]  # fmt: skip
    intervals = []
    for place, step in enumerate(steps):
        low, high = (100 * (step.ratio.value + error - 1) for error in (-step.ratio.error, step.ratio.error))
        intervals.append((place, low, high, 0, 1, _percent(step)))
    return draw.base(
        grid={"left": 8, "right": 110, "top": 8, "bottom": 16},
        xAxis={"type": "value", "axisLabel": {"formatter": "{value} %", "hideOverlap": True}, "splitNumber": 4},
        yAxis=draw.names_axis(names, overflow="break"),
        series=[{"type": "bar", "data": data, "barMaxWidth": 16}, draw.whiskers(intervals)],
    )


def table(study: Study, steps: list[Step]) -> Table:
    rows = [
        [_step_name(study, step), latency_text(study.measured[step.config], study.regime), _percent(step),
         _verdict(step)]
        for step in steps
    ]  # fmt: skip
    return Table(["change", "latency", "against the winner", ""], rows, "lrrl")


def _one_step(study: Study, winner: Config, config: Config, name: str) -> bool:
    if study.space is None or not study.space.dimensions[name].ordinal:
        return True
    tried = study.values(name, study.of_mode(mode_of(winner)))
    return abs(tried.index(winner[name]) - tried.index(config[name])) == 1


def _step_name(study: Study, step: Step) -> str:
    assert study.winner is not None
    return f"{plain(step.name)} {plain(study.winner[step.name])} → {plain(step.value)}"


def _percent(step: Step) -> str:
    return f"{100 * (step.ratio.value - 1):+.1f} ± {100 * step.ratio.error:.1f} %"


def _verdict(step: Step) -> str:
    if step.is_tied:
        return "a tie"
    return "slower" if step.ratio.value > 1 else "faster in the search; the finals decided"
