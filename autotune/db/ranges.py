"""Between two measured sizes: up to which one the smaller one's config serves, as the finals of both tell."""

from __future__ import annotations

import math

from autotune.db.records import Entry
from autotune.outcome import Regime

WIDEST = 4.0
"""Two measured sizes that are further apart by more than this factor say nothing of those between them."""


def border(below: Entry, above: Entry, name: str) -> float:
    """The size, of the dimension ``name``, from which ``above``'s config is the faster of the two.

    Where the finals of both sizes measured both configs: where a straight line of the ratio's logarithm over the
    size's crosses 0. Otherwise the geometric mean.
    """
    small, large = below.key.fields[name], above.key.fields[name]
    lost_below, lost_above = _lost(below, above), _lost(above, below)
    share = 0.5
    if lost_below is not None and lost_above is not None and lost_below + lost_above > 0:
        share = lost_below / (lost_below + lost_above)
    return float(small * (large / small) ** share)


def over_library(entry: Entry) -> float | None:
    """How many times as fast as the fastest baseline the winner is; None without one."""
    regime = Regime(entry.key.regime)
    times = [latency.of(regime) for latency in entry.winner.baselines.values()]
    return min(times) / entry.winner.latency.of(regime) if times else None


def said(entry: Entry, name: str) -> str:
    """A measured size in words: ``m=1024 (1.12 times as fast as the library)``."""
    size, ratio = f"{name}={entry.key.fields[name]}", over_library(entry)
    return size if ratio is None else f"{size} ({ratio:.2f} times as fast as the library)"


def _lost(at: Entry, other: Entry) -> float | None:
    """The logarithm of what the other entry's config took at this one's size over what the winner took; None if it was
    not measured there.
    """
    took = at.winner.beside.get(other.winner.config.to_json())
    if took is None:
        return 0.0 if at.winner.config == other.winner.config else None
    return max(0.0, math.log(took / at.winner.latency.bound.of(Regime(at.key.regime))))
