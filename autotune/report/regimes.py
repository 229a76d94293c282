"""The regimes: what winner and baselines take in each, and whether the winner is slower than a baseline anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.db import Winner
from autotune.outcome import Latency, Regime
from autotune.report.figures import Ratio, fastest, microseconds, ratio

WINNER = "winner"

TITLES = {Regime.GRAPH: "in a graph", Regime.PIPELINED: "pipelined", Regime.ISOLATED: "isolated"}

CALLERS = {
    Regime.GRAPH: "callers that replay it in a graph",
    Regime.PIPELINED: "eager callers whose host runs ahead",
    Regime.ISOLATED: "single calls on an idle GPU",
}

WITHOUT_ROUNDS = (
    "No rounds are known, as of what an older version tuned: ± is the spread of iterations, and says nothing of what "
    "differs between rounds."
)


@dataclass(frozen=True)
class Verdict:
    """The winner against the fastest baseline of a regime."""

    regime: Regime
    baseline: str
    ratio: Ratio
    """How many times as fast the winner is."""
    winner_microseconds: float
    baseline_microseconds: float

    @property
    def text(self) -> str:
        """``isolated: 0.93 ± 0.01 times as fast as bsp graph, slower than it (98.0 µs against 91.0 µs)``."""
        against = f"({microseconds(self.winner_microseconds)} against {microseconds(self.baseline_microseconds)})"
        slower = ", slower than it" if self.ratio.is_less else ""
        return f"{TITLES[self.regime]}: {self.ratio} times as fast as {self.baseline}{slower} {against}"


def in_regimes(winner: Winner) -> dict[str, dict[str, float]]:
    """Microseconds of the winner and every baseline, by name and regime, as far as they were measured."""
    return {name: _known(latency) for name, latency in {WINNER: winner.latency, **winner.baselines}.items()}


def verdicts(winner: Winner) -> tuple[Verdict, ...]:
    """For each regime in which the winner and a baseline were measured."""
    found = []
    for regime in Regime:
        there = {name: latency for name, latency in winner.baselines.items() if latency.knows(regime)}
        name = fastest(there, regime)
        if name is not None and winner.latency.knows(regime):
            ours, theirs = winner.latency, there[name]
            found.append(Verdict(regime, name, ratio(theirs, ours, regime), ours.of(regime), theirs.of(regime)))
    return tuple(found)


def conclusion(of: Sequence[Verdict]) -> str:
    """In plain words, where the winner is slower than a baseline; empty where there is nothing to compare."""
    if not of:
        return ""
    slower = [f"{TITLES[each.regime]} than {each.baseline}" for each in of if each.ratio.is_less]
    if slower:
        return f"The winner is slower {' and '.join(slower)}."
    measured = ", ".join(TITLES[each.regime] for each in of)
    return f"The winner is nowhere slower than a baseline beyond the noise (measured: {measured})."


def _known(latency: Latency) -> dict[str, float]:
    return {regime.value: latency.of(regime) for regime in Regime if latency.knows(regime)}
