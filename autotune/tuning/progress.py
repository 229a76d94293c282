"""The progress of a tuning run, for a person who watches it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from autotune.config import Config
from autotune.outcome import DEFAULT_REGIME, Evaluation, Latency, Outcome, Regime


@dataclass
class Spent:
    """Seconds of a search once the ranks are up, and what went by meanwhile. The finals are not in it."""

    total: float = 0.0
    evaluating: float = 0.0
    """The ranks compiled, checked and measured; …"""
    measuring: float = 0.0
    """… this much of it they measured."""
    compilers: float = 0.0
    """The ranks waited for compilers."""
    trials: int = 0
    """Configs that were compiled, and run where they could be."""

    @property
    def rate(self) -> float:
        """Trials a minute, compilation included; 0 where nothing was searched."""
        return 60 * self.trials / self.total if self.total > 0 else 0.0


@dataclass
class Progress:
    """Updated by the loop, read by a view. Nothing of it is stored."""

    phase: str = "starting the ranks"
    trials: int = 0
    """Configs evaluated so far, those of earlier runs of the same study among them."""
    used: float = 0.0
    """Share of the budget used up."""
    seconds: float = 0.0
    seconds_left: float | None = None
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    best: tuple[Config, Latency] | None = None
    baselines: dict[str, Latency] = field(default_factory=dict)
    last: tuple[Config, Evaluation] | None = None
    restarts: int = 0
    spent: Spent = field(default_factory=Spent)
    resumed: int = 0
    """Trials found in the store when the run began."""
    regime: Regime = DEFAULT_REGIME
    """In which configs are compared."""
    waiting: bool = False
    """For another process that tunes the same problem; ``phase`` says which."""

    @property
    def baseline(self) -> Latency | None:
        """The fastest baseline."""
        return min(self.baselines.values(), key=lambda latency: latency.of(self.regime), default=None)

    def count(self, config: Config, evaluation: Evaluation) -> None:
        """Take an evaluation in."""
        self.outcomes[evaluation.outcome] += 1
        self.last = (config, evaluation)
        if evaluation.outcome is not Outcome.INVALID:
            self.trials += 1
        latency, regime = evaluation.latency, self.regime
        if latency is not None and (self.best is None or latency.of(regime) < self.best[1].of(regime)):
            self.best = (config, latency)
