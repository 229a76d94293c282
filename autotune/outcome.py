"""The result of an evaluation: exactly one outcome, its reason, and the latency of a measured config."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated

from autotune.errors import InputError
from autotune.schema import Within
from autotune.text import did_you_mean


class Regime(StrEnum):
    """The way in which an operator is called; a config's latency depends on it."""

    GRAPH = "graph"
    """Replayed in a captured graph: the device's time alone."""
    PIPELINED = "pipelined"
    """Eager calls, the host running ahead: the larger of the device's time and the host's time to enqueue a call."""
    ISOLATED = "isolated"
    """One call on an idle GPU, waited for: the host's time and the device's, one after the other."""


DEFAULT_REGIME = Regime.PIPELINED


def regime_of(name: str) -> Regime:
    """Parse a regime's name; raises InputError."""
    try:
        return Regime(name)
    except ValueError:
        raise InputError(f"regime {name!r}: allowed: {', '.join(Regime)}{did_you_mean(name, Regime)}") from None


class Outcome(StrEnum):
    """The end of a config's evaluation. Every one is counted, stored and shown."""

    MEASURED = "measured"
    INVALID = "invalid"
    DID_NOT_COMPILE = "did not compile"
    OUT_OF_RESOURCES = "out of resources"
    WRONG_RESULT = "wrong result"
    TIMED_OUT = "timed out"
    CRASHED = "crashed"


@dataclass(frozen=True)
class HostOverhead:
    """Microseconds of the host that an operator's call takes beside the bound call that the tuner times: its checks,
    its look-up, its result's memory (docs/decisions.md).
    """

    host: float
    """Per call, of calls back to back."""
    isolated: float
    """A single call after a wait, its code no longer in the host's caches."""


SHORTEST, LONGEST = 1e-3, 1e12
"""Bounds of a latency in microseconds: a nanosecond to eleven days."""

Time = Annotated[float, Within(SHORTEST, LONGEST)]
Part = Annotated[float, Within(0, LONGEST)]
"""A part of a time, or the difference of two."""


@dataclass(frozen=True)
class Latency:
    """Latency of the slowest rank over the iterations of one config, in microseconds."""

    median: Time
    low: Time
    """20th percentile over the iterations of the maximum over ranks."""
    high: Time
    """80th percentile, likewise."""
    skew: Part
    """Median over the iterations of slowest minus fastest rank."""
    iterations: Annotated[int, Within(1, 2**63 - 1)]
    by_rank: tuple[Time, ...] = ()
    """Each rank's own median."""
    host: Time | None = None
    """Time of the slowest rank's host to enqueue one call; None if not measured, or meaningless, as under the
    interpreter.
    """
    isolated: Time | None = None
    """One call on an idle GPU, from the ranks' common start to the slowest rank's end; None as for ``host``."""
    rounds: tuple[Time, ...] = ()
    """Medians of the finals' rounds, in order; empty if measured only once."""
    host_rounds: tuple[Time, ...] = ()
    isolated_rounds: tuple[Time, ...] = ()
    """``host`` and ``isolated`` per round; empty if any round lacks it."""
    host_overhead: Part | None = None
    isolated_overhead: Part | None = None
    """The operator's share of ``host`` and ``isolated``; None of a bound call, as baselines are."""

    def __post_init__(self) -> None:
        """Raise ValueError if a regime has rounds of another number, or the percentiles are in the wrong order."""
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) is above high ({self.high})")
        counts = {len(rounds) for rounds in (self.host_rounds, self.isolated_rounds) if rounds}
        if counts - {len(self.rounds)}:
            raise ValueError(f"rounds: {len(self.rounds)} of the device, {counts} of the host or of isolated calls")

    @property
    def milliseconds(self) -> list[float]:
        """Median, low and high, as Triton's benches give them."""
        return [time / 1e3 for time in (self.median, self.low, self.high)]

    def through(self, overhead: HostOverhead | None) -> Latency:
        """Add the operator's host overhead; device time is unchanged."""
        if overhead is None:
            return self
        return replace(
            self,
            host=None if self.host is None else self.host + overhead.host,
            isolated=None if self.isolated is None else self.isolated + overhead.isolated,
            host_rounds=tuple(each + overhead.host for each in self.host_rounds),
            isolated_rounds=tuple(each + overhead.isolated for each in self.isolated_rounds),
            host_overhead=None if self.host is None else overhead.host,
            isolated_overhead=None if self.isolated is None else overhead.isolated,
        )

    @property
    def bound(self) -> Latency:
        """The bound call's latency, which trials and baselines measure: without the operator's overhead."""
        if self.host_overhead is None and self.isolated_overhead is None:
            return self
        overhead = HostOverhead(-(self.host_overhead or 0.0), -(self.isolated_overhead or 0.0))
        return replace(self.through(overhead), host_overhead=None, isolated_overhead=None)

    def same_calls(self, other: Latency) -> bool:
        """True if both are of one measurement, with an operator's host overhead or without."""
        device = [(each.median, each.low, each.high, each.skew, each.by_rank, each.rounds) for each in (self, other)]
        return device[0] == device[1]

    def of(self, regime: Regime) -> float:
        """The latency in a regime; if that was not measured, in the next cheaper one."""
        return _of(regime, self.median, self.host, self.isolated)

    def knows(self, regime: Regime) -> bool:
        """True if the latency in that regime was measured."""
        times = {Regime.GRAPH: self.median, Regime.PIPELINED: self.host, Regime.ISOLATED: self.isolated}
        return times[regime] is not None

    def in_rounds(self, regime: Regime) -> tuple[float, ...]:
        nothing = (None,) * len(self.rounds)
        host, isolated = self.host_rounds or nothing, self.isolated_rounds or nothing
        return tuple(_of(regime, *each) for each in zip(self.rounds, host, isolated, strict=True))

    @property
    def spread(self) -> float:
        """Half the distance from the 20th to the 80th percentile, relative to the median."""
        return (self.high - self.low) / 2 / self.median


def alike(one: Latency, other: Latency) -> tuple[Latency, Latency]:
    """Both with an operator's host overhead in their times, or both without: a replay's result has none."""
    return (one, other) if (one.host_overhead is None) == (other.host_overhead is None) else (one.bound, other.bound)


@dataclass(frozen=True)
class Evaluation:
    """The result of one config's evaluation, as the ranks report it and the store keeps it."""

    outcome: Outcome
    reason: str = ""
    latency: Latency | None = None
    error: float | None = None
    """Largest relative error over the ranks: ``|out - ref| / |ref|`` (Frobenius)."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time by phase: compile, check, measure."""
    times: tuple[float, ...] = field(default=(), repr=False, compare=False)
    """Microseconds of each iteration's slowest rank, in the requested regime. Not stored."""

    def __post_init__(self) -> None:
        """Raise ValueError unless a latency and the outcome ``measured`` come together."""
        if (self.latency is not None) != (self.outcome is Outcome.MEASURED):
            raise ValueError(f"outcome {self.outcome} with latency {self.latency}")


def _of(regime: Regime, device: float, host: float | None, isolated: float | None) -> float:
    pipelined = device if host is None else max(device, host)
    return {Regime.GRAPH: device, Regime.PIPELINED: pipelined}.get(regime, pipelined if isolated is None else isolated)
