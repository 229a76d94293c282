"""Importance of each dimension: the best latency per value, and Optuna's importance."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.config import Config, Value
from autotune.search_spaces import Space

FEWEST = 20
"""Below this number of measured configs, an importance would be noise."""


@dataclass(frozen=True)
class Reached:
    """The best latency among configs with one value."""

    value: Value
    best: float
    relative: float
    """Latency over the best of all configs that have the dimension: in another mode all might be far from the best."""
    configs: int
    """The number of measured configs with the value."""


@dataclass(frozen=True)
class Knob:
    name: str
    help: str
    reached: tuple[Reached, ...]
    importance: float | None


def knobs_of(
    measured: Mapping[Config, float], varied: Mapping[str, Mapping[Value, list[float]]], space: Space | None
) -> tuple[tuple[Knob, ...], tuple[str, ...]]:
    """The dimensions that ``varied``, with the latencies of each value, and Optuna's warnings as notes; without a space
    there is no importance.
    """
    importance, notes = _importance(measured, list(varied), space) if space is not None else ({}, ())
    knobs = []
    for name, groups in varied.items():
        best = min(map(min, groups.values()))
        reached = (Reached(value, min(group), min(group) / best, len(group)) for value, group in groups.items())
        text = space.dimensions[name].help if space is not None else ""
        knobs.append(Knob(name, text, tuple(reached), importance.get(name)))
    return tuple(knobs), notes


def _importance(
    measured: Mapping[Config, float], varied: list[str], space: Space
) -> tuple[dict[str, float], tuple[str, ...]]:
    """PED-ANOVA over the measured configs, for the dimensions that took several values, summing to 1; it handles
    dimensions that only some modes have.
    """
    if len(measured) < FEWEST:
        return {}, (f"Importance of dimensions needs {FEWEST} measured configs; there are {len(measured)}.",)
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
