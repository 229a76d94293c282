"""Rounds: configs measured in turns are compared round by round, so that common changes cancel."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

STUDENT_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
)  # fmt: skip
"""Student's t at 95 %, two-sided, by the number of rounds from two on (one degree of freedom less)."""


def log_ratios(slower: Sequence[float], faster: Sequence[float]) -> list[float]:
    """The logarithm of each round's ratio, for the leading rounds that both have."""
    return [math.log(one / other) for one, other in zip(slower, faster, strict=False)]


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and half the width of its 95 % confidence interval; needs two values."""
    student = STUDENT_95[min(len(values) - 2, len(STUDENT_95) - 1)]
    return statistics.mean(values), student * statistics.stdev(values) / math.sqrt(len(values))
