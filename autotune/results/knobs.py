"""Importance of each dimension: the best latency per value, and Optuna's importance."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.config import Config, Value
from autotune.db import TrialRecord
from autotune.outcome import DEFAULT_REGIME, Regime
from autotune.search_spaces import Space

FEWEST = 20
"""Below this number of measured configs, an importance would be noise."""


@dataclass(frozen=True)
class Reached:
    """The best latency among configs with one value."""

    value: Value
    best: float
    relative: float
    """Latency over the best of all configs that have the dimension; 1 is as good as any of them."""
    configs: int
    """The number of measured configs with the value."""


@dataclass(frozen=True)
class Knob:
    name: str
    help: str
    reached: tuple[Reached, ...]
    importance: float | None


def knobs_of(
    searched: Sequence[TrialRecord], space: Space | None, regime: Regime = DEFAULT_REGIME
) -> tuple[tuple[Knob, ...], tuple[str, ...]]:
    """The dimensions that took more than one value, and Optuna's warnings as notes.

    Without a space, dimensions keep the order of the configs and have no importance.
    """
    measured: dict[Config, float] = {}
    for record in searched:
        if record.evaluation.latency is not None:
            measured.setdefault(record.config, record.evaluation.latency.of(regime))
    importance, notes = _importance(measured, space) if space is not None else ({}, ())
    names = list(space.dimensions) if space is not None else list(dict.fromkeys(n for c in measured for n in c))
    knobs = []
    for name in names:
        reached = _reached(name, measured, space)
        if len(reached) > 1:
            text = space.dimensions[name].help if space is not None else ""
            knobs.append(Knob(name, text, reached, importance.get(name)))
    return tuple(knobs), notes


def _reached(name: str, measured: dict[Config, float], space: Space | None) -> tuple[Reached, ...]:
    """The best of the configs with each value, in the dimension's own order; relative to the best that have the
    dimension, for in another mode all might be far from the best of all.
    """
    groups: dict[Value, list[float]] = {}
    for config, median in measured.items():
        if name in config:
            groups.setdefault(config[name], []).append(median)
    best = min((min(group) for group in groups.values()), default=math.nan)
    order = {value: place for place, value in enumerate(space.dimensions[name].values)} if space is not None else {}
    values = sorted(groups, key=lambda value: (order.get(value, 0), str(type(value)), value))
    return tuple(Reached(value, min(groups[value]), min(groups[value]) / best, len(groups[value])) for value in values)


def _importance(measured: dict[Config, float], space: Space) -> tuple[dict[str, float], tuple[str, ...]]:
    """PED-ANOVA over the measured configs, for the dimensions that took several values, summing to 1; it handles
    dimensions that only some modes have.
    """
    if len(measured) < FEWEST:
        return {}, (f"Importance of dimensions needs {FEWEST} measured configs; there are {len(measured)}.",)
    varied = [name for name in space.dimensions if len({config.get(name) for config in measured} - {None}) > 1]
    if not varied or len(set(measured.values())) == 1:
        return {}, ("Importance of dimensions needs configs that differ, and latencies that do.",)
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study()
    for config, median in measured.items():
        study.add_trial(
            optuna.trial.create_trial(
                params=space.parameters(config), distributions=space.distributions(config), value=math.log(median)
            )
        )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        found = optuna.importance.get_param_importances(study, evaluator=evaluator, params=varied)
    optuna.logging.set_verbosity(verbosity)
    return found, tuple(dict.fromkeys(f"Optuna, on importance: {warning.message}" for warning in caught))
