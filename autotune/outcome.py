"""An evaluation's end: exactly one outcome, its reason, and the latency where there is one."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Outcome(StrEnum):
    """How the evaluation of one config ended. Every one is counted, stored and shown."""

    MEASURED = "measured"
    INVALID = "invalid"
    DID_NOT_COMPILE = "did not compile"
    OUT_OF_RESOURCES = "out of resources"
    WRONG_RESULT = "wrong result"
    TIMED_OUT = "timed out"
    CRASHED = "crashed"


@dataclass(frozen=True)
class Latency:
    """What the slowest rank saw, over the iterations of one config. Microseconds."""

    median: float
    low: float
    """20th percentile over the iterations of the maximum over ranks."""
    high: float
    """80th percentile, likewise."""
    skew: float
    """Median over the iterations of slowest minus fastest rank."""
    iterations: int
    by_rank: tuple[float, ...] = ()
    """Each rank's own median."""

    @property
    def spread(self) -> float:
        """Half the distance between the 20th and the 80th percentile, as a share of the median."""
        return (self.high - self.low) / 2 / self.median


@dataclass(frozen=True)
class Evaluation:
    """The end of one config's evaluation, as the ranks report it and the store keeps it."""

    outcome: Outcome
    reason: str = ""
    latency: Latency | None = None
    error: float | None = None
    """Largest relative error against the reference over the ranks: ``|out - ref| / |ref|`` (Frobenius)."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time by phase: compile, check, measure."""
    times: tuple[float, ...] = field(default=(), repr=False, compare=False)
    """Microseconds of each iteration's slowest rank, for as long as this process runs: the store keeps none."""

    def __post_init__(self) -> None:
        """A latency and the outcome ``measured`` come together or not at all."""
        if (self.latency is not None) != (self.outcome is Outcome.MEASURED):
            raise ValueError(f"outcome {self.outcome} with latency {self.latency}")
