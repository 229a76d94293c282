"""Effort presets and budgets: the limits of a tuning run in trials and time."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.errors import InputError, InvalidBudget
from autotune.machine import Machine
from autotune.text import did_you_mean

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
MOST_TRIALS = 100_000
LONGEST = 7 * 24 * 3600.0
SHORTEST = 3.0
"""Seconds of a budget: 7 to 50 configs of a dense operator on 2 H100, where the median search is near its end after 4.
"""
LARGEST_SEED = 2**32 - 1
"""The largest seed that NumPy's generators take."""


@dataclass(frozen=True)
class Effort:
    """The thoroughness of search and measurement."""

    trials: int
    """Configs evaluated by the search, unless a budget sets another number."""
    screen: int
    """Iterations after which a clearly slow config is dropped."""
    iterations: int
    """Iterations of the other configs."""
    finalists: int
    """Configs measured again in the finals, in turns with the default and the baselines."""
    rounds: int
    """Rounds of the finals, repeated if the winner is undecided; even, since the order alternates. One alone is never
    repeated: for an evaluator whose answers do not vary.
    """
    routings: int = 0
    """Rounds of a mixture's winner under each other routing, even for the same reason; 0 leaves them out."""


EFFORTS: Mapping[str, Effort] = {
    "quick": Effort(trials=24, screen=3, iterations=9, finalists=2, rounds=2),
    "standard": Effort(trials=120, screen=5, iterations=15, finalists=4, rounds=4, routings=2),
    "full": Effort(trials=400, screen=5, iterations=25, finalists=6, rounds=6, routings=2),
}

FINALS_SHARE = 0.2
"""Share of a time budget reserved for the finals, at least."""

MOST_FINALS = 0.4
"""Upper bound on the finals' share of the budget."""

BRIEF = 10.0
"""Seconds up to which a budget has time for brief finals alone."""


@dataclass(frozen=True)
class Budget:
    """Limits of a search: trials and seconds, whichever is reached first."""

    trials: int
    seconds: float = math.inf

    def __post_init__(self) -> None:
        """Raise InvalidBudget for limits out of range."""
        if not 1 <= self.trials <= MOST_TRIALS:
            raise InvalidBudget(f"{self.trials} trials: allowed: 1 to {MOST_TRIALS}")
        if self.seconds != math.inf:
            _check_seconds(self.seconds)

    @classmethod
    def of(cls, effort: Effort, trials: int | None = None, duration: str | None = None) -> Budget:
        """From the command line: ``duration`` like 90s, 5m, 1.5h. A duration without trials is the only limit."""
        seconds = parse_duration(duration) if duration is not None else math.inf
        if trials is None:
            trials = effort.trials if duration is None else MOST_TRIALS
        return cls(trials, seconds)

    @property
    def is_brief(self) -> bool:
        return self.seconds <= BRIEF

    def used(self, trials: int, seconds: float, finals: float = 0.0) -> float:
        """The used share of the search's budget, at most 1; ``finals``: the seconds that they are expected to need."""
        if not math.isfinite(self.seconds):
            return min(1.0, trials / self.trials)
        reserved = min(max(FINALS_SHARE, finals / self.seconds), MOST_FINALS)
        return min(1.0, max(trials / self.trials, seconds / (self.seconds * (1 - reserved))))


def limits_of(
    machine: Machine, effort: str | None, trials: int | None, budget: str | None, seed: int = 0
) -> tuple[str, Budget]:
    """The effort's name, by default the machine's, and the limits of the search.

    Raises InputError, also for an invalid ``seed``, and InvalidBudget.
    """
    if not 0 <= seed <= LARGEST_SEED:
        raise InputError(f"seed {seed}: allowed: 0 to {LARGEST_SEED}")
    effort = effort or ("quick" if machine.is_interpreter else "standard")
    if effort not in EFFORTS:
        raise InputError(f"effort {effort!r}: allowed: {', '.join(EFFORTS)}{did_you_mean(effort, EFFORTS)}")
    return effort, Budget.of(EFFORTS[effort], trials, budget)


def parse_duration(text: str) -> float:
    """Parse 90s, 5m, 1.5h; raises InvalidBudget, also for what no budget may be."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    if match is None:
        raise InvalidBudget(f"budget {text!r}: write it like 90s, 5m or 1.5h")
    seconds = float(match[1]) * UNITS[match[2]]
    _check_seconds(seconds)
    return seconds


def _check_seconds(seconds: float) -> None:
    if not SHORTEST <= seconds <= LONGEST:
        raise InvalidBudget(f"budget of {seconds:g} s: allowed: {SHORTEST:g}s to {LONGEST / 3600:g}h")
