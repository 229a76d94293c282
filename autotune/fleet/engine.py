"""The seam to whatever places problems on hosts: start one, hear which ended. It keeps no state worth keeping."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from autotune.db.fleet_records import HostRecord, Listed


@dataclass(frozen=True)
class Ended:
    """Work that the engine no longer does."""

    problem: int
    token: str
    """Marks the lease that it may have left behind."""
    lost: str = ""
    """The reason that its process died; empty if it ended by itself, and the rows say how."""
    unable: str = ""
    """The reason that the host could not even claim it; empty if it could."""


class Engine(Protocol):
    def hosts(self) -> list[HostRecord]:
        """The hosts that are here now and were examined."""

    @property
    def at_work(self) -> Collection[int]: ...

    def free(self, host: HostRecord) -> int:
        """The number of a host's GPUs that this engine has not given out."""

    def start(self, problem: Listed, host: HostRecord) -> None:
        """Have a host claim the problem and tune it."""

    def ended(self, seconds: float) -> list[Ended]:
        """Wait that long for the next end, and return what has ended."""

    def close(self) -> None:
        """Interrupt what is at work; its measurements are kept."""
