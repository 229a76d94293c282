"""Importance of the dimensions that varied, and the cost of each value."""

from __future__ import annotations

from dataclasses import replace

from autotune.report import draw
from autotune.report.draw import COLOURS
from autotune.report.view import Chart, Option, Table, View
from autotune.results.figures import plain
from autotune.results.knobs import Knob
from autotune.results.study import Study

EXPLAINED = (
    "Importance: how much a dimension separates the best tenth of the configs from the rest; all of it adds up to 1 "
    "(Optuna's PED-ANOVA). A dimension that only some modes have counts within them."
)


ENDS = "The best and the worst value: its best latency over the best of all (the number of its configs)"

LEAST = 0.005
"""Importance below which a dimension is not drawn."""


def view(study: Study) -> View | None:
    """None without importances: what each value cost is no more than other views have."""
    found, ranked = ends(study), by_importance(study)
    if found is None or not ranked:
        return None
    label = f"Importance: {', '.join(f'{plain(k.name)} {k.importance:.2f}' for k in ranked[:3])} …"
    option = options(study)
    chart = Chart("importance", label, option, 60 + 24 * len(option["series"][0]["data"]))
    return replace(found, charts=[chart])


def ends(study: Study) -> View | None:
    """The best and the worst value of each dimension; JSON has them all."""
    has_importance = bool(by_importance(study))
    rows = []
    for knob in sorted(study.knobs, key=lambda knob: -(knob.importance or 0.0)):
        values = sorted(knob.reached, key=lambda each: each.relative)
        told = [f"{plain(each.value)}: {each.relative:.2f} ({each.configs})" for each in (values[0], values[-1])]
        importance = ["" if knob.importance is None else f"{knob.importance:.2f}"] if has_importance else []
        rows.append([plain(knob.name), *importance, *told])
    if not rows:
        return None
    header = ["dimension", *(["importance"] if has_importance else []), "best", "worst"]
    table = Table(header, rows, "lr" if has_importance else "", ENDS)
    if not has_importance:
        return View("importance", "What matters", tables=[table])
    return View("importance", "What matters", EXPLAINED, tables=[table], notes=study.knob_notes)


def by_importance(study: Study) -> list[Knob]:
    """The dimensions with an importance, the most important first."""
    return sorted((k for k in study.knobs if k.importance is not None), key=lambda k: -(k.importance or 0.0))


def options(study: Study) -> Option:
    ranked = [knob for knob in by_importance(study) if knob.importance and knob.importance >= LEAST]
    data = [
        {"value": round(knob.importance or 0.0, 4), "name": f"{plain(knob.name)}: {plain(knob.help)}",
         "label": {"formatter": f"{knob.importance:.2f}"}}
        for knob in ranked
    ]  # fmt: skip
    return draw.base(
        grid={"left": 8, "right": 50, "top": 16, "bottom": 16},
        xAxis={"type": "value", "min": 0, "splitNumber": 4},
        yAxis=draw.names_axis([plain(knob.name) for knob in ranked]),
        series=[{"type": "bar", "data": data, "color": COLOURS[0], "barMaxWidth": 14,
                 "label": {"show": True, "position": "right", "fontSize": 11}}],
    )  # fmt: skip
