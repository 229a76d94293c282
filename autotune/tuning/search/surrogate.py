"""The surrogate: what unknown configs ought to take, judging by those measured: a Gaussian process about a trend."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.config import Config, Value
from autotune.search_spaces import Dimension, Space

STEP = 0.3
"""Distance of two values of an ordinal dimension that are neighbours, times the dimension's relevance; configs
correlate by exp(-distance)."""

OTHER_WORD = 0.5
"""Distance of two values without an order, …"""

OTHER_MODE = 1.0
"""… and of two modes."""

NOISE = 1e-3
"""Share of the variance that two measurements of one config may differ by."""

LEAST_SPREAD = 0.01
"""Lower bound on the logarithms' spread, however well a trend fits: below it nothing is expected to gain anything."""

RATE = 0.3
"""The longest step of the relevances' logarithms per call."""

MOST_MEASURED = 150
MOST_FAILED = 40
"""Configs that are learnt from, the fastest and the latest: the cost grows with the third power."""

MOST_PLACES = 10_000
"""Configs whose coordinates are kept: a long run asks about hundreds of thousands."""

Array = NDArray[np.float64]


class Surrogate:
    """Learns anew at each call, in a few milliseconds; how much each dimension matters, it keeps."""

    def __init__(self, space: Space, predict: Callable[[Config], float | None] = lambda config: None) -> None:
        """Use the space's dimensions; constraints are the caller's. ``predict``: a cost model's microseconds.

        The model is taken as far as it bears out: its logarithm, times a slope that fits what was measured, is the
        trend, and the process is about what is left. Where it has no opinion there is no trend.
        """
        self._predict = predict
        self._places: dict[Config, list[float]] = {}
        self._predictions: dict[Config, float] = {}
        self._coordinates = [(d.name, _coordinates(d)) for d in space.dimensions.values()]
        widths = [len(places[None]) for _, places in self._coordinates]
        self._dimension = np.repeat(np.arange(len(widths)), widths)
        """Dimension of each coordinate."""
        self._relevance = np.ones(len(space.dimensions))
        self.expected = math.inf
        """The improvement expected of the last favourite."""

    def most_promising(
        self, candidates: Sequence[Config], measured: Mapping[Config, float], failed: Sequence[Config],
        pending: Sequence[Config],
    ) -> Config:  # fmt: skip
        """The candidate with the largest expected improvement on the least of ``measured``, their values' noise aside.

        ``measured`` holds what is minimised, of one config at least. What failed counts as the worst measured; what is
        ``pending`` as the median, so that nothing is expected to be gained next to it.
        """
        fastest = sorted(measured, key=lambda config: measured[config])[:MOST_MEASURED]
        values = [measured[config] for config in fastest]
        known = [*fastest, *failed[-MOST_FAILED:], *pending]
        worst, typical = values[-1], float(np.median(values))
        targets = np.array(values + [worst] * (len(known) - len(values) - len(pending)) + [typical] * len(pending))
        predicted, others = self._predicted(known), self._predicted(candidates)
        slope = _slope(predicted[: len(values)], targets[: len(values)])
        rest, deviation = self._expected(known, targets - slope * predicted, candidates)
        mean = rest + slope * others
        improvement = _improvement(values[0] - mean, deviation)
        favourite = int(np.argmax(improvement))
        self.expected = float(improvement[favourite])
        return candidates[favourite]

    def _expected(self, known: Sequence[Config], targets: Array, candidates: Sequence[Config]) -> tuple[Array, Array]:
        """Mean and standard deviation of the Gaussian process at the candidates."""
        centre, scale = np.median(targets), max(float(np.std(targets)), LEAST_SPREAD)
        places, asked = self._place(known), self._place(candidates)
        self._learn_relevance(places, (targets - centre) / scale)
        relevance = self._relevance[self._dimension]
        places, asked = places * relevance, asked * relevance
        across = _correlation(places, asked)
        within = _correlation(places, places) + NOISE * np.eye(len(known))
        weights = np.linalg.solve(within, across)
        variance = np.maximum(1 - (across * weights).sum(axis=0), 1e-9)
        return centre + weights.T @ (targets - centre), scale * np.sqrt(variance)

    def _learn_relevance(self, places: Array, targets: Array) -> None:
        """One step towards the likeliest relevances, where each is expected to be 1, give or take a factor of e.

        The gradient is that of Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, (5.9).
        """
        if not targets.any():
            return
        apart = np.zeros((len(self._relevance), len(targets), len(targets)))
        for dimension, column in zip(self._dimension, places.T, strict=True):
            apart[dimension] += np.abs(column[:, None] - column)
        within = np.exp(-np.tensordot(self._relevance, apart, 1))
        inverse = np.linalg.inv(within + NOISE * np.eye(len(targets)))
        explained = inverse @ targets
        pull = within * (inverse - np.outer(explained, explained) * len(targets) / (targets @ explained))
        slope = self._relevance * np.tensordot(apart, pull, 2) / 2 - np.log(self._relevance)
        self._relevance *= np.exp(RATE * np.tanh(slope))

    def _predicted(self, configs: Sequence[Config]) -> Array:
        """The logarithm of what the cost model says of each, 0 where it has no opinion; asked once."""
        for config in configs:
            if config not in self._predictions:
                self._predictions[config] = math.log(self._predict(config) or 1.0)
        return np.array([self._predictions[config] for config in configs])

    def _place(self, configs: Sequence[Config]) -> Array:
        """Coordinates [configs, as many as all dimensions have], each known config's worked out once."""
        if len(self._places) > MOST_PLACES:
            self._places.clear()
            self._predictions.clear()
        for config in configs:
            if config not in self._places:
                self._places[config] = [x for name, those in self._coordinates for x in those[config.get(name)]]
        return np.array([self._places[config] for config in configs])


def _slope(predicted: Array, measured: Array) -> float:
    """Slope of the line of least squares; from 0, where the predictions say nothing, to 1, where they are right."""
    apart = predicted - predicted.mean()
    varies = float(apart @ apart)
    return min(1.0, max(0.0, float(apart @ measured) / varies)) if varies > 0 else 0.0


def _coordinates(dimension: Dimension) -> dict[Value | None, list[float]]:
    """The coordinates of each value along its dimension; the distance of two configs is the sum of the differences.

    A config whose mode lacks the dimension (None) is half-way between its ends, or as far from every word: so the
    distances are those of a tree, for which exp(-distance) is a correlation.
    """
    count = len(dimension.values)
    if dimension.ordinal:
        places: dict[Value | None, list[float]] = {value: [STEP * i] for i, value in enumerate(dimension.values)}
        return places | {None: [STEP * (count - 1) / 2]}
    apart = (OTHER_MODE if dimension.name == "mode" else OTHER_WORD) / 2
    words = {value: [apart * (i == at) for i in range(count)] for at, value in enumerate(dimension.values)}
    return words | {None: [0.0] * count}


def _correlation(one: Array, other: Array) -> Array:
    correlation: Array = np.zeros((len(one), len(other)))
    for mine, theirs in zip(one.T, other.T, strict=True):
        correlation -= np.abs(mine[:, None] - theirs)
    result: Array = np.exp(correlation)
    return result


def _improvement(gain: Array, deviation: Array) -> Array:
    """Expected improvement of a normal variable whose mean is better by ``gain`` (Mockus, 1978)."""
    z = gain / deviation
    below = np.array([0.5 * math.erfc(-each / math.sqrt(2)) for each in z])
    improvement: Array = gain * below + deviation * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return improvement
