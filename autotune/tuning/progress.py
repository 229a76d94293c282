"""The progress of a tuning run, for a person who watches it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from autotune.config import Config
from autotune.outcome import DEFAULT_REGIME, Evaluation, Latency, Outcome, Regime


@dataclass
class Spent:
    """Seconds of a search by use, from the ranks' start on, without the finals."""

    total: float = 0.0
    evaluating: float = 0.0
    """Ranks compiling, checking and measuring; ``measuring`` is a part of it."""
    measuring: float = 0.0
    compilers: float = 0.0
    """Ranks waiting for compilers."""
    trials: int = 0
    """Configs compiled, and run unless refused."""

    @property
    def rate(self) -> float:
        """Trials per minute, compilation included; 0 before any."""
        return 60 * self.trials / self.total if self.total > 0 else 0.0


@dataclass
class Progress:
    """Updated by the loop, read by a view, never stored."""

    phase: str = "starting the ranks"
    trials: int = 0
    """Configs evaluated so far, in earlier runs of the study too."""
    trials_planned: int | None = None
    """Configs to evaluate; None where only time limits them."""
    used: float = 0.0
    """Share of the search's budget used up."""
    finals: tuple[int, int] = (0, 0)
    """Measurements of the finals, done and planned; none before and after."""
    seconds: float = 0.0
    seconds_left: float | None = None
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    best: tuple[Config, Latency] | None = None
    baselines: dict[str, Latency] = field(default_factory=dict)
    last: tuple[Config, Evaluation] | None = None
    restarts: int = 0
    spent: Spent = field(default_factory=Spent)
    exhausted: bool = False
    """True once the search has found no config that it has not tried; …"""
    settled: bool = False
    """… and true where there are others, but none that promises to gain anything."""
    resumed: int = 0
    """Trials found in the store when the run began."""
    regime: Regime = DEFAULT_REGIME
    """The regime in which configs are compared."""
    waiting: bool = False
    """Waiting for another process that tunes the same problem; ``phase`` names it."""

    @property
    def baseline(self) -> Latency | None:
        return min(self.baselines.values(), key=lambda latency: latency.of(self.regime), default=None)

    def count(self, config: Config, evaluation: Evaluation, *, may_win: bool = True, searched: bool = True) -> None:
        """A trial has ended, unless ``searched`` is false: then it is a proof. ``best`` is the fastest that may win."""
        self.last = (config, evaluation)
        if searched:
            self.outcomes[evaluation.outcome] += 1
            self.trials += evaluation.outcome is not Outcome.INVALID
        latency, regime = evaluation.latency, self.regime
        if latency is None and self.best is not None and self.best[0] == config:
            self.best = None  # it has failed since
        if may_win and latency is not None and (self.best is None or latency.of(regime) < self.best[1].of(regime)):
            self.best = (config, latency)
