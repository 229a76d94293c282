"""Between and near measured sizes: whose config serves, by what those that were measured lose there."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Self

from autotune.config import Config
from autotune.db.records import Entry, Winner
from autotune.outcome import Regime
from autotune.sizes import WIDEST

UNMEASURED = math.log(1.1)
"""The logarithm of what a config is taken to lose at a size where it was not measured, as a larger size's winner at a
searched one. So a config that was measured at both ends serves up to the one where it loses little, and less far where
it loses much.
"""

NEIGHBOURS, CLOSEST = 5, 0.01
"""Measured problems that tell of one near them, and the distance below which they are all as close."""


@dataclass(frozen=True)
class Place:
    """A measured size of a range."""

    size: int
    winner: Winner
    regime: Regime

    @classmethod
    def of(cls, entry: Entry, name: str) -> Self:
        """``name`` is the dimension that varies."""
        return cls(entry.key.fields[name], entry.winner, Regime(entry.key.regime))

    def lost_by(self, other: Place) -> float | None:
        """The logarithm of what the other's config takes here over what the winner takes; None if it was not measured
        here.
        """
        return lost(self.winner, other.winner.config, self.regime)


def lost(winner: Winner, config: Config, regime: Regime) -> float | None:
    """The logarithm of what a config takes over what the winner takes, where that won; None if it was not measured."""
    took = winner.beside.get(config.to_json())
    if took is None:
        return 0.0 if winner.config == config else None
    return max(0.0, math.log(took / winner.latency.bound.of(regime)))


def by_expected_loss(near: Iterable[tuple[float, Entry]]) -> list[Entry]:
    """The nearest entries, that one first whose winner is expected to lose least: what it loses at each of them, the
    mean of the logarithms, weighted by 1 / distance² (Shepard 1968). ``near``: with distances, the nearest first.

    Of 54 keys of a Triton GEMM, each left out, the first of 15 configs so chosen took 1.033 times the least time, the
    nearest key's winner 1.068; the best of three 1.001 (H200, 2026-11-30).
    """
    known = list(islice(near, NEIGHBOURS))

    def expected(candidate: Entry) -> float:
        total = 0.0
        for distance, entry in known:
            found = lost(entry.winner, candidate.winner.config, Regime(entry.key.regime))
            total += (UNMEASURED if found is None else found) / max(distance, CLOSEST) ** 2
        return total

    return sorted((entry for _, entry in known), key=expected)


def border(below: Place, above: Place) -> int | None:
    """The largest size that ``below``'s config serves; None if the two are too far apart.

    Where a straight line from what one config loses at the other's size to what that one loses here crosses 0, the
    logarithm of their ratio over that of the size: the geometric mean where both lose the same.
    """
    if above.size > WIDEST * below.size:
        return None
    lost_below, lost_above = (
        UNMEASURED if lost is None else lost for lost in (below.lost_by(above), above.lost_by(below))
    )
    if lost_below == lost_above:
        return math.isqrt(below.size * above.size)
    share = lost_below / (lost_below + lost_above)
    return min(above.size - 1, int(below.size * (above.size / below.size) ** share))


def said(entry: Entry, names: Iterable[str]) -> str:
    """A measured problem in words, by its sizes ``names``: ``m=1024 (1.12 times as fast as the library)``; under the
    interpreter without a ratio.
    """
    regime, winner = Regime(entry.key.regime), entry.winner
    times = [latency.of(regime) for latency in winner.baselines.values() if not entry.key.is_interpreted]
    ratio = f" ({min(times) / winner.latency.of(regime):.2f} times as fast as the library)" if times else ""
    return " ".join(f"{name}={entry.key.fields[name]}" for name in names) + ratio
