"""The early stop: drops a config whose first iterations show that it is slower than the incumbent."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

ERROR_RATE = 0.01
"""Highest probability of dropping a config that is not slower than the incumbent by ``LEAST_INTERESTING``, all looks
together.
"""

LEAST_INTERESTING = 0.03
"""Share of the incumbent's latency. A config slower by less runs to the end: clocks drift by as much between two
evaluations, and the incumbent, the best of many, was lucky.
"""


def in_parts(screen: int, iterations: int) -> list[int]:
    """Iterations between two looks: ``screen`` first, then as many as are known already."""
    parts: list[int] = []
    while (done := sum(parts)) < iterations:
        parts.append(min(done or screen, iterations - done))
    return parts


def clearly_slower(times: Sequence[float], incumbent: Sequence[float], looks: int) -> bool:
    """True if ``times`` are slower than the incumbent's by more than ``LEAST_INTERESTING``; both in microseconds.

    One-sided rank-sum test (Mann and Whitney, 1947), exact, against the incumbent's times made slower by that share.
    Each of the ``looks`` gets an equal part of ``ERROR_RATE``, so that together they keep to it (Bonferroni). The test
    assumes the same kind of noise in both configs. Without an incumbent nothing is slower.
    """
    if not times or not incumbent:
        return False
    allowed = [time * (1 + LEAST_INTERESTING) for time in incumbent]
    slower = sum(time > other for time in times for other in allowed)  # a tie speaks for the config
    n, m = len(times), len(incumbent)
    as_slow = sum(_orders(n, m, pairs) for pairs in range(slower, n * m + 1))
    return as_slow <= ERROR_RATE / looks * math.comb(n + m, n)


def slowest(by_rank: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """The slowest rank's time per iteration; raises ValueError if the ranks counted differently."""
    return tuple(max(times) for times in zip(*by_rank, strict=True))


@functools.cache
def _orders(n: int, m: int, pairs: int) -> int:
    """Number of orders of n + m times, by the number of pairs in which the one of the n is above the one of the m."""
    if pairs < 0 or n == 0 or m == 0:
        return int(pairs == 0)
    # The slowest is either one of the n, above all of the m, or one of the m, above none.
    return _orders(n - 1, m, pairs - m) + _orders(n, m - 1, pairs)
