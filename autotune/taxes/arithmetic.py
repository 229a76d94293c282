"""The taxes' arithmetic: means over paired rounds with bootstrap intervals, slopes, slack. No unit, no I/O."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
SEED = 6

LEAST_CLOCK = 0.97
"""A round whose slowest turn ran at less than this share of its fastest turn's clock is not a comparison of equals."""

ABSORBED = 1.05
"""A delay is absorbed as long as it makes a call slower by less than this factor."""


@dataclass(frozen=True)
class Estimate:
    """A mean over rounds and its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def is_nil(self) -> bool:
        """True if the interval does not exclude zero."""
        return self.low <= 0 <= self.high

    @property
    def error(self) -> float:
        return (self.high - self.low) / 2


def estimate(*terms: Sequence[float]) -> Estimate:
    """The mean of the rounds, with the interval of 95 % that resampling them gives (percentile bootstrap). Of several
    terms the sum of the means: each has rounds of its own, which are resampled apart.

    The mean, not the median: differences of means add up exactly. Raises ValueError without rounds.
    """
    if not terms or not all(terms):
        raise ValueError("no rounds: nothing to estimate")
    random = np.random.default_rng(SEED)
    means = np.zeros(RESAMPLES)
    for rounds in terms:
        values = np.asarray(rounds, dtype=np.float64)
        means += values[random.integers(0, len(values), size=(RESAMPLES, len(values)))].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    value = math.fsum(statistics.fmean(rounds) for rounds in terms)
    return Estimate(value, min(float(low), value), max(float(high), value))


def differences(terms: Sequence[tuple[Sequence[float], Sequence[float]]]) -> list[float]:
    """The sum of several differences, of what is above less what is below, round by round."""
    each = [[one - other for one, other in zip(*term, strict=True)] for term in terms]
    return [sum(values) for values in zip(*each, strict=True)]


def same_clock(clocks: Mapping[str, Sequence[float]], rounds: int) -> list[bool]:
    """True for each round whose turns all ran at about the same clock, or if no clock is known.

    ``clocks``: the slowest GPU's in each turn, by variant; 0 where it is not known.
    """
    kept = []
    for number in range(rounds):
        known = [series[number] for series in clocks.values() if number < len(series) and series[number] > 0]
        kept.append(not known or min(known) >= LEAST_CLOCK * max(known))
    return kept


def slopes(doses: Mapping[float, Sequence[float]]) -> list[float]:
    """The response to one more unit of the dose: the slope of a straight line through each round.

    Raises ValueError for fewer than two doses.
    """
    if len(doses) < 2:
        raise ValueError(f"{len(doses)} dose: a slope needs two")
    x = [float(dose) for dose in doses]
    return [statistics.linear_regression(x, y).slope for y in zip(*doses.values(), strict=True)]


def slack(doses: Mapping[float, Sequence[float]]) -> float:
    """The largest dose that is absorbed, between doses by a straight line; infinite if the largest one is."""
    ordered = sorted((float(dose), statistics.fmean(rounds)) for dose, rounds in doses.items())
    limit = ABSORBED * ordered[0][1]
    for (before, low), (after, high) in zip(ordered, ordered[1:], strict=False):
        if high > limit:
            return before + (after - before) * (limit - low) / (high - low) if high > low else before
    return float("inf")
