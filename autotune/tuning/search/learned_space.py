"""A search space learnt from a study's trials: its parameters, and which of them depend on the value of another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial

from autotune.config import Config
from autotune.search_spaces import Dimension, Space, choices
from autotune.tuning.search.proposer import Given

POINTS = 33
"""Values of a parameter with more of them, or with infinitely many, that are searched."""

MOST_BRANCHES = 16
"""Values of a parameter on which others may be seen to depend."""

MOST_MODES = 64
"""Combinations of such values that are foreseen; of more, only those that have occurred."""

ALWAYS = "always"
"""The mode of a space in which no parameter depends on another."""


@dataclass(frozen=True)
class Grid:
    """The values of one parameter that are searched."""

    distribution: BaseDistribution

    @cached_property
    def values(self) -> tuple[Any, ...]:
        """Values in rising order; categories in their own order."""
        dist = self.distribution
        if isinstance(dist, CategoricalDistribution):
            return tuple(dist.choices)
        assert isinstance(dist, IntDistribution | FloatDistribution)
        step = dist.step
        steps = round((dist.high - dist.low) / step) if step is not None else POINTS
        count = min(steps + 1, POINTS) if dist.high > dist.low else 1
        low, high = self._scale(dist.low), self._scale(dist.high)
        places = (low + (high - low) * i / max(1, count - 1) for i in range(count))
        numbers = (math.exp(place) if dist.log else place for place in places)
        within = (min(max(number, dist.low), dist.high) for number in numbers)
        if step is not None:
            stepped = (dist.low + round((number - dist.low) / step) * step for number in within)
            within = (min(number, dist.high) for number in stepped)  # 3 * 0.1 is more than 0.3
        return tuple(dict.fromkeys(int(n) if isinstance(dist, IntDistribution) else float(n) for n in within))

    @property
    def is_ordinal(self) -> bool:
        return not isinstance(self.distribution, CategoricalDistribution)

    def index(self, value: Any) -> int | None:
        """Index of the nearest value on the grid; None if out of range."""
        if not self.is_ordinal:
            return next((i for i, own in enumerate(self.values) if own is value or own == value), None)
        dist = self.distribution
        assert isinstance(dist, IntDistribution | FloatDistribution)
        if not dist.low <= value <= dist.high:
            return None
        place = self._scale(value)
        return min(range(len(self.values)), key=lambda i: abs(self._scale(self.values[i]) - place))

    def _scale(self, value: float) -> float:
        return math.log(value) if getattr(self.distribution, "log", False) else value


@dataclass(frozen=True)
class Condition:
    """A parameter is there where another has one of these values."""

    on: str
    values: frozenset[int]
    """Indices on the other's grid."""


class LearnedSpace:
    """A joint space with a mode for each combination of values that others depend on.

    A parameter whose presence no other one explains is left out, and drawn at random.
    """

    def __init__(self, trials: Sequence[FrozenTrial]) -> None:
        self._grids = {name: Grid(dist) for name, dist in _distributions(trials).items()}
        placed = [self._places(trial) for trial in trials]
        self._conditions: dict[str, Condition] = {}
        everywhere = {name for name in self._grids if all(name in each for each in placed)}
        for name in self._grids:
            if name not in everywhere and (found := self._condition(name, placed)) is not None:
                self._conditions[name] = found
        known = everywhere | self._conditions.keys()
        self._names = [name for name in self._grids if name in known]
        self._governors = [
            name for name in self._names if any(condition.on == name for condition in self._conditions.values())
        ]
        self._modes = {_label(each): each for each in self._branches(placed)}
        self.distributions: Mapping[str, BaseDistribution] = {n: self._grids[n].distribution for n in self._names}
        nowhere: Any = None  # the constraints of a learned space, of which there are none, look at nothing
        self.given = Given(Space(choices("mode", *self._modes), *self._dimensions()), nowhere)

    def config(self, trial: FrozenTrial) -> Config | None:
        """The config of a trial's parameters, numbers at the nearest point of the grid; None for other parameters."""
        if not all(name in self._grids for name in trial.params):
            return None
        places = self._places(trial)
        branch = {name: places[name] for name in self._governors if name in places}
        expected = [name for name in self._names if self._is_there(name, branch)]
        if _label(branch) not in self._modes or expected != [name for name in self._names if name in places]:
            return None
        values = {_dimension(name): places[name] for name in expected if name not in branch}
        return Config({"mode": _label(branch), **values})

    def parameters(self, config: Config) -> dict[str, Any]:
        branch = self._modes[str(config["mode"])]
        places = {**branch, **{n: config.integer(_dimension(n)) for n in self._names if _dimension(n) in config}}
        return {name: self._grids[name].values[place] for name, place in places.items()}

    def _places(self, trial: FrozenTrial) -> dict[str, int]:
        """The indices of a trial's values that lie on the grids."""
        found = {name: self._grids[name].index(value) for name, value in trial.params.items() if name in self._grids}
        return {name: place for name, place in found.items() if place is not None}

    def _condition(self, name: str, placed: Sequence[Mapping[str, int]]) -> Condition | None:
        """On which parameter before it this one depends: one that explains all trials, of the fewest values."""
        best: tuple[int, Condition] | None = None
        for other in self._grids:
            if other == name:
                break
            found = _explains(other, name, placed)
            if found is not None and (best is None or found[0] < best[0]):
                best = found
        return best[1] if best is not None else None

    def _is_there(self, name: str, branch: Mapping[str, int]) -> bool:
        condition = self._conditions.get(name)
        return condition is None or branch.get(condition.on) in condition.values

    def _branches(self, placed: Sequence[Mapping[str, int]]) -> list[dict[str, int]]:
        """The values of the governing parameters that go together: all, unless they are too many."""
        branches: list[dict[str, int]] = [{}]
        for name in self._governors:
            grown: list[dict[str, int]] = []
            for branch in branches:
                values = range(len(self._grids[name].values)) if self._is_there(name, branch) else ()
                grown += [{**branch, name: value} for value in values] or [branch]
            branches = grown
            if len(branches) > MOST_MODES:
                return [{name: each[name] for name in self._governors if name in each} for each in placed]
        return branches

    def _dimensions(self) -> Iterator[Dimension]:
        for name in self._names:
            if name not in self._governors:
                grid = self._grids[name]
                modes = tuple(label for label, branch in self._modes.items() if self._is_there(name, branch))
                if modes:
                    yield Dimension(_dimension(name), tuple(range(len(grid.values))), modes, grid.is_ordinal)


def _distributions(trials: Sequence[FrozenTrial]) -> dict[str, BaseDistribution]:
    """Distributions of the parameters, in the order of their first suggestion; ranges that differ are united."""
    found: dict[str, BaseDistribution] = {}
    for trial in trials:
        for name, new in trial.distributions.items():
            old = found.setdefault(name, new)
            if old != new and isinstance(old, IntDistribution) and isinstance(new, IntDistribution):
                low, high = min(old.low, new.low), max(old.high, new.high)
                # All values of both, such as 16 in steps of 8 and 32 in steps of 16.
                step = math.gcd(old.step, new.step, old.low - new.low)
                found[name] = IntDistribution(low, high, new.log, step)
            elif old != new and isinstance(old, FloatDistribution) and isinstance(new, FloatDistribution):
                low_, high_ = min(old.low, new.low), max(old.high, new.high)
                found[name] = FloatDistribution(low_, high_, new.log, _common_step(old, new))
    return found


def _common_step(one: FloatDistribution, other: FloatDistribution) -> float | None:
    """The step of both, None unless it is the same and leads from the values of one to those of the other."""
    if one.step is None or one.step != other.step:
        return None
    between = (one.low - other.low) / one.step
    return one.step if math.isclose(between, round(between), abs_tol=1e-8) else None


def _explains(other: str, name: str, placed: Sequence[Mapping[str, int]]) -> tuple[int, Condition] | None:
    """The condition that ``name`` is there by, were it ``other`` that decides, and how many values that one has."""
    present: dict[int, bool] = {}
    for each in placed:
        if other not in each:
            if name in each:
                return None
        elif present.setdefault(each[other], name in each) != (name in each):
            return None
    if len(set(present.values())) < 2 or len(present) > MOST_BRANCHES:
        return None
    return len(present), Condition(other, frozenset(value for value, there in present.items() if there))


def _label(branch: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={place}" for name, place in branch.items()) or ALWAYS


def _dimension(name: str) -> str:
    """The dimension of a parameter; the study may have one of the name ``mode``."""
    return f"parameter {name}"
