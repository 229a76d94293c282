"""An evaluation's end: exactly one outcome, its reason, and the latency where there is one."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from autotune.errors import InputError


class Regime(StrEnum):
    """How a caller meets an operator; what a config's latency is depends on it."""

    GRAPH = "graph"
    """Replayed within a captured graph: the device's time alone."""
    PIPELINED = "pipelined"
    """Eager, the host running ahead: the larger of the device's time and what the host needs to enqueue a call."""
    ISOLATED = "isolated"
    """One call on an idle GPU, and its end awaited: the host's time and the device's, one after the other."""


DEFAULT_REGIME = Regime.PIPELINED


def regime_of(name: str) -> Regime:
    """The regime of that name; raises InputError."""
    try:
        return Regime(name)
    except ValueError:
        raise InputError(f"regime {name!r}: allowed are {', '.join(Regime)}") from None


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
    host: float | None = None
    """What the slowest rank's host needs to enqueue one call; None where it was not measured, or means nothing, as
    under the interpreter."""
    isolated: float | None = None
    """One call on an idle GPU, from the moment at which all ranks begin to the slowest rank's end; None likewise."""
    rounds: tuple[float, ...] = ()
    """The medians of the finals' rounds, in order; empty for what was measured once."""
    host_rounds: tuple[float, ...] = ()
    isolated_rounds: tuple[float, ...] = ()
    """``host`` and ``isolated`` of each round; empty where any round lacks it."""

    def __post_init__(self) -> None:
        """Raise ValueError where the rounds of a regime are not as many as there are rounds."""
        counts = {len(rounds) for rounds in (self.host_rounds, self.isolated_rounds) if rounds}
        if counts - {len(self.rounds)}:
            raise ValueError(f"rounds: {len(self.rounds)} of the device, {counts} of the host or of isolated calls")

    def of(self, regime: Regime) -> float:
        """The latency in a regime, as far as it was measured; where it was not, that of the next cheaper one."""
        return _of(regime, self.median, self.host, self.isolated)

    def knows(self, regime: Regime) -> bool:
        """True where ``of`` tells what was measured in that regime."""
        return {
            Regime.GRAPH: True,
            Regime.PIPELINED: self.host is not None,
            Regime.ISOLATED: self.isolated is not None,
        }[regime]

    def in_rounds(self, regime: Regime) -> tuple[float, ...]:
        """The latency of each round in a regime."""
        nothing = (None,) * len(self.rounds)
        host, isolated = self.host_rounds or nothing, self.isolated_rounds or nothing
        return tuple(_of(regime, *each) for each in zip(self.rounds, host, isolated, strict=True))

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
    """Microseconds of each iteration's slowest rank, in the regime asked for, for as long as this process runs: the
    store keeps none."""

    def __post_init__(self) -> None:
        """A latency and the outcome ``measured`` come together or not at all."""
        if (self.latency is not None) != (self.outcome is Outcome.MEASURED):
            raise ValueError(f"outcome {self.outcome} with latency {self.latency}")


def _of(regime: Regime, device: float, host: float | None, isolated: float | None) -> float:
    pipelined = device if host is None else max(device, host)
    return {Regime.GRAPH: device, Regime.PIPELINED: pipelined}.get(regime, pipelined if isolated is None else isolated)
