"""What driver and ranks say to each other: a rank answers every request with exactly one reply."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from autotune.config import Config
from autotune.machine import Machine
from autotune.outcome import Outcome
from autotune.workloads.provenance import Code


@dataclass(frozen=True)
class Open:
    """Join the others and open the heap. The first request of all."""

    machine: Machine
    rank: int
    world_size: int
    rendezvous: str
    """A file that does not exist yet, the same for all ranks."""
    heap_bytes: int
    spin_limit: int
    begun: float = 0.0
    """When the driver began to start the ranks, on the monotonic clock that all processes of a host share."""


@dataclass(frozen=True)
class SetUp:
    """Set a problem up, in place of the one before. The second request, and whenever the gang turns to another one."""

    workload: str
    """Its name, or FILE:CLASS."""
    problem: dict[str, Any]


@dataclass(frozen=True)
class Compile:
    """Compile the config's kernels; launch nothing."""

    config: Config


@dataclass(frozen=True)
class Check:
    """Prepare the config, run it on fresh inputs, compare with the reference."""

    config: Config
    seed: int


@dataclass(frozen=True)
class Measure:
    """Time the prepared config."""

    warmup: int
    iterations: int


@dataclass(frozen=True)
class Recheck:
    """Run the prepared config in ``bursts`` of ``calls`` back to back, each call on other inputs, ranks apart in time;
    compare what every call has left. See ``ranks/bursts.py`` for ``stagger`` and ``pause``, in seconds.
    """

    seed: int
    stagger: float
    pause: float
    bursts: int
    calls: int


@dataclass(frozen=True)
class MeasureIsolated:
    """Time single calls of the prepared config, each on an idle device."""

    calls: int


@dataclass(frozen=True)
class MeasureParts:
    """Time the operation's parts alone, or one of them."""

    warmup: int
    iterations: int
    only: str | None = None


@dataclass(frozen=True)
class MeasureRates:
    """Find out what the devices and their links can do."""

    dtype: str
    """Of the GEMM, as problems name it."""


Request = Open | SetUp | Compile | Check | Measure | Recheck | MeasureIsolated | MeasureParts | MeasureRates


@dataclass(frozen=True)
class Done:
    """The request was carried out."""

    fingerprint: str
    """What the rank believes it works on; the driver compares them."""
    overall: float = 0.0
    element: float = 0.0
    times: tuple[float, ...] = ()
    """Microseconds of each call."""
    host: tuple[float, ...] = ()
    """Microseconds that the host needed to enqueue some of them."""
    parts: dict[str, tuple[float, ...]] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    """By resource, per microsecond."""
    seconds: dict[str, float] = field(default_factory=dict)
    """What opening took, by stage."""
    code: Code | None = None
    """What the rank has set the problem up with."""


@dataclass(frozen=True)
class Failed:
    """The request ended in an outcome other than success."""

    outcome: Outcome
    reason: str
    broken: bool = False
    """The rank's device can no longer be used: the gang has to be restarted."""
    restart: float = 0.0
    """Seconds that it took to start the ranks again."""


@dataclass(frozen=True)
class Bug:
    """Something nobody expected. It stops the run."""

    traceback: str


Reply = Done | Failed | Bug
