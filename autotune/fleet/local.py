"""The local engine: this host, one problem at a time."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import Future, ThreadPoolExecutor, wait

from autotune.db.fleet_records import HostRecord, Listed
from autotune.fleet.attempt import Start, attempt
from autotune.fleet.engine import Ended
from autotune.fleet.hosts import examined, name_here
from autotune.fleet.tuning import ChildTuning


class LocalEngine:
    """Tunes on this host. Several of them may share a list, on several hosts: nothing else is needed for a fleet."""

    def __init__(self, url: str, host: HostRecord | None = None, start: Start = ChildTuning) -> None:
        """Examines this host unless it is given. Raises FleetError."""
        self._url, self._start = url, start
        self._host = host or examined(name_here(), url)
        self._cancelled = threading.Event()
        self._pool = ThreadPoolExecutor(1, "fleet")  # its thread stays: the child dies with the thread that started it
        self._running: tuple[int, str, Future[bool]] | None = None

    def hosts(self) -> list[HostRecord]:
        return [self._host]

    @property
    def at_work(self) -> set[int]:
        return {self._running[0]} if self._running is not None else set()

    def free(self, host: HostRecord) -> int:
        return host.gpus if self._running is None else 0

    def start(self, problem: Listed, host: HostRecord) -> None:
        """Tune the widest problem that nobody else has; it need not be the one that was looked at."""
        token = uuid.uuid4().hex
        work = self._pool.submit(
            attempt, self._url, self._host.name, None, token, cancelled=self._cancelled.is_set, start=self._start
        )
        self._running = problem.id, token, work

    def ended(self, seconds: float) -> list[Ended]:
        if self._running is None:
            self._cancelled.wait(seconds)
            return []
        problem, token, work = self._running
        if not wait([work], seconds).done:
            return []
        self._running = None
        work.result()
        return [Ended(problem, token)]

    def close(self) -> None:
        self._cancelled.set()
        self._pool.shutdown()
