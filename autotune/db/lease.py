"""A study's lease: the process that tunes it, so that a second process waits instead of measuring too.

Clocks of other hosts are not trusted. On the holder's own host its process is looked up; elsewhere the waiter watches,
by its own clock, whether the holder's heartbeat in the database still counts up.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from autotune.text import visible

BEAT_SECONDS = 5.0
"""Seconds between two heartbeats."""

SILENT_SECONDS = 60.0
"""A heartbeat silent for this long belongs to a dead holder, or to one cut off from the database."""

LONGEST_PAUSE = 10.0
"""Seconds of silence that one look at a heartbeat adds at most."""


@dataclass(frozen=True)
class Lease:
    """The process that tunes a study."""

    host: str
    system: str
    """Boot and process namespace in which ``pid`` means something."""
    pid: int
    started: str
    """Start of the process in the system's ticks: process ids are reused."""
    since: str
    """UTC, by the holder's clock; for people."""
    token: str
    """Distinguishes two leases of one process."""

    @classmethod
    def new(cls, token: str = "") -> Self:
        """This process's, with a token of its own unless one is given."""
        pid = os.getpid()
        since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return cls(socket.gethostname(), _system(), pid, _started(pid) or "", since, token or uuid.uuid4().hex)

    @property
    def text(self) -> str:
        """The lease as JSON, for its column."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"


@dataclass(frozen=True)
class Held:
    """A lease and its heartbeat, as a second process reads them from the tables."""

    text: str
    heartbeat: int

    @property
    def lease(self) -> Lease | None:
        """None if the text is damaged; then only the heartbeat tells whether the holder lives."""
        try:
            lease = Lease(**json.loads(self.text))
        except (ValueError, TypeError, RecursionError):
            return None
        return lease if isinstance(lease.pid, int) else None

    @property
    def is_here(self) -> bool:
        """True if the holder is or was a process of this system, and can be looked up."""
        lease = self.lease
        return lease is not None and lease.system == _system() and _started(lease.pid) is not None

    @property
    def is_gone(self) -> bool:
        """True if the holder was a process of this system and has ended. Nothing is known of other systems, nor of
        another user's process where /proc hides it (``hidepid``).
        """
        return self.is_here and self.lease is not None and _started(self.lease.pid) != self.lease.started

    def __str__(self) -> str:
        return visible(str(self.lease or "a process that cannot be named"))


class Silence:
    """The time for which a lease has been silent, by this process's own clock.

    A long pause between two looks counts little: this process slept, or the database was away, for the holder too.
    """

    def __init__(self) -> None:
        self._held: Held | None = None
        self._silent = 0.0
        self._looked_at = 0.0

    def hear(self, held: Held) -> None:
        """Note the lease's present heartbeat."""
        now = time.monotonic()
        pause, self._looked_at = min(now - self._looked_at, LONGEST_PAUSE), now
        self._silent = self._silent + pause if held == self._held else 0.0
        self._held = held

    @property
    def over(self) -> Held | None:
        """The lease to take over, if any: its holder is gone, or is on another host and silent."""
        if self._held is None:
            return None
        silent = not self._held.is_here and self._silent >= SILENT_SECONDS
        return self._held if silent or self._held.is_gone else None


def _system() -> str:
    """This boot of this host and its process namespace; containers have their own and may share host names."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"unknown {uuid.getnode()} {os.getpid()}"  # matches nobody else's: heartbeats alone count


def _started(pid: int) -> str | None:
    """The process's start in ticks since boot; empty without such a process, None for one that is hidden."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None if _exists(pid) else ""
    fields = stat.rpartition(")")[2].split()  # the name before may hold spaces and brackets
    return "" if fields[0] in "ZX" else fields[19]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True
