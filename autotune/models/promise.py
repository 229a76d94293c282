"""The time that tuned operators promise to save in a forward: by their winners, and at most, by their limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from autotune.db import Entry, Winner
from autotune.models.forward import Call
from autotune.outcome import Regime
from autotune.problem import Problem
from autotune.results.figures import fastest, slowest
from autotune.results.regimes import called_alike


@dataclass(frozen=True)
class Promise:
    """Microseconds of all operators of one forward, as tuning measured them; those of untuned ones are left out."""

    library: float
    """Time with each operation's fastest library baseline."""
    winners: float
    limits: float
    """Lower bound: only the slower part of each, communication or computation."""
    untuned: int = 0
    """Calls that are not in it."""

    @property
    def gain(self) -> float:
        return self.library - self.winners

    @property
    def most(self) -> float:
        """The gain at the limits."""
        return self.library - self.limits


def before(winner: Winner, regime: Regime) -> float | None:
    """Microseconds of the library as a forward in this regime calls it: captured only where the forward is."""
    ways = called_alike(winner.baselines, regime)
    name = fastest(ways, regime)
    return None if name is None else ways[name].of(regime)


def promised(calls: Iterable[Call], entry_of: Callable[[Problem], Entry | None], regime: Regime) -> Promise:
    """The sum over the calls of a forward; ``entry_of`` finds a problem's own entry, None where it is not tuned.

    A winner's time is no less than its limit here, so that ``gain`` is at most ``most`` in spite of noise.
    """
    library = winners = limits = 0.0
    untuned = 0
    for call in calls:
        entry = entry_of(call.problem)
        baseline = None if entry is None else before(entry.winner, regime)
        if entry is None or baseline is None:
            untuned += call.count
            continue
        winner = entry.winner
        part, took = slowest(winner.limits), winner.latency.of(regime)
        library += call.count * baseline
        winners += call.count * took
        limits += call.count * (min(took, winner.limits[part].median) if part is not None else took)
    return Promise(library, winners, limits, untuned)
