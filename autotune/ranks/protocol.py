"""The protocol of driver and ranks: a rank answers every request with exactly one reply."""

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
    """Time at which the driver began to start the ranks, on the host's monotonic clock."""


@dataclass(frozen=True)
class SetUp:
    """Set a problem up in place of the one before: the second request, and whenever the gang switches problems."""

    workload: str
    """Name or FILE:CLASS."""
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
    warmup: int
    iterations: int


@dataclass(frozen=True)
class Recheck:
    """Run the prepared config in ``bursts`` of ``calls`` back to back, each call on other inputs, ranks apart in time;
    compare every call's result. See ``ranks/bursts.py`` for ``stagger`` and ``pause``, in seconds.
    """

    seed: int
    stagger: float
    pause: float
    bursts: int
    calls: int


@dataclass(frozen=True)
class KeepBatch:
    """Keep the inputs and results of the last check, until the problem is set up again, for ``CompareRows``."""


@dataclass(frozen=True)
class CompareRows:
    """Run the prepared config on rows of the batch that was kept, from each number in ``firsts`` on, several times, and
    compare the results with those of the batch, bit by bit. Fails with wrong result.
    """

    firsts: tuple[int, ...]


@dataclass(frozen=True)
class MeasureIsolated:
    calls: int


@dataclass(frozen=True)
class MeasureOverhead:
    """Time what the host does in an operator's call beside the bound call. ``Done.times``: isolated, ``host``: back to
    back; both empty where the workload has no operator, and under the interpreter.
    """

    warm_call: str
    """``MODULE:FUNCTION``, see ``runtime.host_overhead``: a name, as ranks import nothing from above them."""
    calls: int


@dataclass(frozen=True)
class Turn:
    """Prepare a config that has been checked before, and time it, for ``tune taxes`` and traced calls."""

    config: Config
    warmup: int
    calls: int
    isolated: bool = False
    """Isolated calls, each from the ranks' common start to this rank's end."""
    late_rank: int = 0
    late: float = 0.0
    """Seconds by which that rank is late to each call; its own time counts from the others' start."""


@dataclass(frozen=True)
class MeasureBarrier:
    """Time a launch that is nothing but a barrier of all ranks, and one that is nothing at all."""

    warmup: int
    calls: int


@dataclass(frozen=True)
class Trace:
    """Make one call of the config of the last turn, and collect its kernels' stamps, or torch's operations in it."""


@dataclass(frozen=True)
class MeasureParts:
    """Time the operation's parts alone, or one of them."""

    warmup: int
    iterations: int
    only: str | None = None


@dataclass(frozen=True)
class MeasureRates:
    dtype: str
    """The GEMM's element type, by the problems' names."""


Request = (
    Open | SetUp | Compile | Check | Measure | Recheck | KeepBatch | CompareRows
    | MeasureIsolated | MeasureOverhead | Turn | MeasureBarrier
    | Trace | MeasureParts | MeasureRates
)  # fmt: skip


Stamped = tuple[int, int, int, int, float, float]
"""Launch, program, kind (see ``autotune.timeline``), number, begin and end in microseconds."""


@dataclass(frozen=True)
class Done:
    fingerprint: str
    """Problem and config that the rank works on; the driver compares them."""
    overall: float = 0.0
    element: float = 0.0
    times: tuple[float, ...] = ()
    """Microseconds of each call."""
    host: tuple[float, ...] = ()
    """Microseconds in which the host enqueued some of them."""
    parts: dict[str, tuple[float, ...]] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    """Rates per microsecond, by resource."""
    events: tuple[Stamped, ...] = ()
    """The events of a traced call."""
    clock: float = 0.0
    """MHz of this rank's GPU after a turn; 0 under the interpreter."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds of the start, by stage."""
    code: Code | None = None
    """The code with which the rank set the problem up."""


@dataclass(frozen=True)
class Failed:
    """The request ended in an outcome other than success."""

    outcome: Outcome
    reason: str
    broken: bool = False
    """The rank's device is unusable: the gang has to be restarted."""
    restart: float = 0.0
    """Seconds for restarting the ranks."""


@dataclass(frozen=True)
class Bug:
    """An unexpected exception; it stops the run."""

    traceback: str
    told: bool = False
    """It is a line that says what is wrong with a user's workload."""


Reply = Done | Failed | Bug
