"""A study's lease: which process is tuning it, so that a second one waits instead of measuring beside it.

No host trusts another's clock: on the holder's own host the process itself is looked for; elsewhere a heartbeat is
counted up in the database, and who waits watches by its own clock that it stands still.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from autotune.text import visible

BEAT_SECONDS = 5.0
"""Between two heartbeats."""

SILENT_SECONDS = 60.0
"""A heartbeat that has not moved for so long is a dead holder's, or that of a holder cut off from the database."""


@dataclass(frozen=True)
class Lease:
    """Who is tuning a study."""

    host: str
    """Its name, for people."""
    system: str
    """Boot and process namespace in which ``pid`` means something."""
    pid: int
    started: str
    """When the process started, in the system's ticks: another process may have the same number later."""
    since: str
    """UTC, by the holder's clock; for people."""
    token: str
    """Tells two leases of one process apart."""

    @classmethod
    def new(cls) -> Self:
        """A lease for this process."""
        pid = os.getpid()
        since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return cls(socket.gethostname(), _system(), pid, _started(pid), since, uuid.uuid4().hex)

    @property
    def text(self) -> str:
        """As the tables keep it."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"


@dataclass(frozen=True)
class Held:
    """A lease as a second process finds it in the tables, and its heartbeat then."""

    text: str
    heartbeat: int

    @property
    def lease(self) -> Lease | None:
        """None where the text is damaged: only the heartbeat tells whether such a holder lives."""
        try:
            lease = Lease(**json.loads(self.text))
        except (ValueError, TypeError, RecursionError):
            return None
        return lease if isinstance(lease.pid, int) else None

    @property
    def is_here(self) -> bool:
        """True where the holder is a process of this system, or was one."""
        return self.lease is not None and self.lease.system == _system()

    @property
    def is_gone(self) -> bool:
        """True where the holder was a process of this system and is no more. Of other systems nothing is known."""
        return self.is_here and self.lease is not None and _started(self.lease.pid) != self.lease.started

    def __str__(self) -> str:
        return visible(str(self.lease or "a process that cannot be named"))


def _system() -> str:
    """This boot of this host, and the namespace of its processes; containers have their own, and may share a name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"unknown {uuid.getnode()} {os.getpid()}"  # matches nobody else's: heartbeats alone count


def _started(pid: int) -> str:
    """The process's start in ticks since boot; empty where there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()  # the name before may hold spaces and brackets
    return "" if fields[0] in "ZX" else fields[19]
