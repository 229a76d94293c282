"""A report as a frozen dataclass: everything that is said about one finished study, before it is written down."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from autotune.config import Config, Value
from autotune.db.records import CacheKey, Provenance, Roofline
from autotune.outcome import Latency, Outcome, Regime
from autotune.report.figures import Ratio
from autotune.report.regimes import Verdict


@dataclass(frozen=True)
class Speedup:
    """The winner against one baseline of the same run, in the regime tuned for."""

    baseline: str
    latency: Latency
    ratio: Ratio


@dataclass(frozen=True)
class Limit:
    """The operation's parts alone, as the library does them: perfect overlap takes as long as the slowest of them."""

    parts: dict[str, Latency]
    shares: dict[str, Ratio]
    """Each part's time over the winner's, on the device."""
    slowest: str

    @property
    def share(self) -> Ratio:
        """Of the slowest part: 1 is perfect overlap."""
        return self.shares[self.slowest]


@dataclass(frozen=True)
class Tax:
    """What the bulk-synchronous way loses, as far as the measurements can tell it apart."""

    name: str
    microseconds: float
    error: float
    meaning: str


@dataclass(frozen=True)
class Ranked:
    """One of the best configs: its latency in the search, and in the finals where it was in them."""

    config: Config
    latency: Latency
    final: Latency | None
    source: str
    winner: bool


@dataclass(frozen=True)
class Ending:
    """How often evaluations ended in one way, with one example."""

    outcome: Outcome
    count: int
    reason: str
    example: Config | None


@dataclass(frozen=True)
class Reached:
    """The best latency that any config with a value reached."""

    value: Value
    best: float
    relative: float
    """Over the best of all configs: 1 is as good as any."""
    configs: int
    """Measured configs with the value."""


@dataclass(frozen=True)
class Knob:
    """How one dimension mattered."""

    name: str
    help: str
    reached: tuple[Reached, ...]
    importance: float | None


@dataclass(frozen=True)
class Report:
    """One finished study."""

    key: CacheKey
    provenance: Provenance
    problem: dict[str, Any]
    study_id: int
    seed: int
    space_size: int
    finished_at: datetime
    config: Config
    latency: Latency
    speedups: tuple[Speedup, ...]
    """Against the fastest baseline first."""
    limit: Limit | None
    roofline: Roofline | None
    """A second limit, which no kernel passes: from the problem's flops and bytes at this device's measured rates."""
    in_regimes: dict[str, dict[str, float]]
    """Microseconds of winner and baselines, by name and regime, as far as they were measured."""
    verdicts: tuple[Verdict, ...]
    """The winner against the fastest baseline of each regime."""
    taxes: tuple[Tax, ...]
    best: tuple[Ranked, ...]
    endings: tuple[Ending, ...]
    disqualified: tuple[Ranked, ...]
    """Finalists that failed when they were measured again; latencies are those of the search."""
    knobs: tuple[Knob, ...]
    searched: int
    """Configs evaluated by the search, baselines among them."""
    remeasured: int
    """Evaluations of the finals."""
    seconds: float
    """Spent in evaluations, search and finals."""
    measuring: float
    """So much of them the ranks measured; else they compiled and checked."""
    restarts: int = 0
    """How often a config cost the ranks their lives, …"""
    restarting: float = 0.0
    """… and the seconds of ``seconds`` that it took to start them again."""
    rank_correlation: float | None = None
    """Spearman's, of the cost model's predictions with the latencies of the search; None where too few have both."""
    notes: tuple[str, ...] = ()
    """What a reader must know first."""
    knob_notes: tuple[str, ...] = ()
    """What Optuna says of its importances."""

    @property
    def regime(self) -> Regime:
        """That the study was tuned for."""
        return Regime(self.key.regime)
