"""Rounds: what is measured in turns is compared round by round, so that what changes for all alike cancels."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

STUDENT_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
)  # fmt: skip
"""By the number of rounds, from two on: Student's t with one degree of freedom less, two-sided at 95 %."""


def log_ratios(slower: Sequence[float], faster: Sequence[float]) -> list[float]:
    """The logarithm of each round's ratio, for the rounds that both were in, from the first on."""
    return [math.log(one / other) for one, other in zip(slower, faster, strict=False)]


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half the width of its 95 % confidence interval; of two values or more."""
    student = STUDENT_95[min(len(values) - 2, len(STUDENT_95) - 1)]
    return statistics.mean(values), student * statistics.stdev(values) / math.sqrt(len(values))
