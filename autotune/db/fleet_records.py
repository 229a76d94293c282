"""A fleet's records: wanted problems, hosts, attempts, and a snapshot of it all for a person."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from autotune.db.lease import Held
from autotune.db.records import CacheKey, Provenance

ProblemState = Literal["wanted", "running", "stopping", "stopped", "done", "failed"]
"""``stopping``: under way, and asked to stop. ``failed``: set aside."""

AttemptState = Literal["done", "failed", "lost", "stopped"]
"""An attempt's end. ``lost``: its process or host died, which is not the problem's fault."""


@dataclass(frozen=True)
class Kind:
    """A kind of host: results of one kind serve all its hosts, and no other's."""

    device: str
    arch: str
    interconnect: str
    triton: str
    iris: str
    torch: str
    driver: str

    def __str__(self) -> str:
        versions = f"triton {self.triton}, iris {self.iris}, torch {self.torch}"
        return f"{self.device}, {self.interconnect}, {versions}" + (f", driver {self.driver}" if self.driver else "")


@dataclass(frozen=True)
class Finding:
    """A finding of the doctor, as its row."""

    name: str
    verdict: str
    found: str
    mend: str = ""


@dataclass(frozen=True)
class HostRecord:
    """A host that was examined, by the name under which it takes problems."""

    name: str
    gpus: int
    """The widest problem that it takes."""
    kind: Kind
    findings: tuple[Finding, ...] = ()
    broken: str = ""
    """The doctor's broken findings; empty if there are none."""
    set_aside: str = ""
    """Why it gets no more problems; empty if it does."""

    @property
    def is_usable(self) -> bool:
        return not self.broken and not self.set_aside

    def takes(self, wanted: Wanted) -> bool:
        """True if the problem is of the host's kind and not too wide for it."""
        return wanted.kind == self.kind and wanted.key.world_size <= self.gpus


@dataclass(frozen=True)
class Wanted:
    """A problem to be tuned for one kind of host, with the identity of the study to come."""

    key: CacheKey
    provenance: Provenance
    options: Mapping[str, Any]
    """Budget, trials, effort and seed, as the command line takes them."""

    @property
    def identity(self) -> tuple[CacheKey, Provenance]:
        return self.key, self.provenance

    @property
    def kind(self) -> Kind:
        values = dataclasses.asdict(self.key) | dataclasses.asdict(self.provenance)
        return Kind(**{field.name: values[field.name] for field in dataclasses.fields(Kind)})

    def as_row(self) -> dict[str, Any]:
        """The columns that a problem's row has of it."""
        options = json.dumps(dict(self.options), sort_keys=True)
        return {**dataclasses.asdict(self.key), **dataclasses.asdict(self.provenance), "options": options}


@dataclass(frozen=True)
class Listed:
    """A wanted problem, its state, and the hosts that it failed on."""

    id: int
    wanted: Wanted
    state: ProblemState
    reason: str = ""
    failed_on: frozenset[str] = frozenset()
    """Hosts that failed it and will not be asked again."""


@dataclass(frozen=True)
class Claim:
    """A problem that a host has taken on."""

    attempt: int
    problem: Listed
    number: int
    """Counts the problem's attempts from 1."""


@dataclass(frozen=True)
class UnderWay:
    """An attempt that is running, or whose process has died without a word."""

    attempt: int
    problem: Listed
    host: str
    held: Held
    started_at: str
    progress: str


@dataclass(frozen=True)
class Attempt:
    """One attempt, under way or ended."""

    id: int
    problem: Listed
    host: str
    state: Literal["running"] | AttemptState
    reason: str
    seconds: float | None


@dataclass(frozen=True)
class Counts:
    """Numbers of problems, by state."""

    wanted: int = 0
    running: int = 0
    stopping: int = 0
    stopped: int = 0
    done: int = 0
    failed: int = 0

    @property
    def total(self) -> int:
        return sum(dataclasses.astuple(self))


@dataclass(frozen=True)
class Snapshot:
    """All that ``status`` and ``watch`` show, read in one transaction."""

    counts: Counts
    running: Sequence[UnderWay]
    unlucky: Sequence[Listed]
    """Problems set aside, then those that failed once and wait for another host."""
    hosts: Sequence[HostRecord]
    problem_seconds: float | None
    """Mean time of the attempts that are done; None before any."""

    @property
    def seconds_left(self) -> float | None:
        """At the present pace; None without a pace, or with nothing under way."""
        at_work = len(self.running)
        if self.problem_seconds is None or not at_work:
            return None
        return self.problem_seconds * (self.counts.wanted + at_work / 2) / at_work
