"""A pool of helper processes. A helper that crashes or hangs ends alone, with its job."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Pipe
from typing import Any

from autotune.processes.helper import Answer, Job
from autotune.processes.python import kill_all, start_python

START_SECONDS = 300.0
"""Seconds for a new helper's imports: seconds normally, minutes on a busy host."""


class HelperDied(Exception):
    """A helper ended during a job."""


class HelperStuck(Exception):
    """A helper did not answer in time, and was killed."""


class Pool:
    """At most ``workers`` helpers, started on demand. Safe to use from many threads.

    A thread serves each helper: it starts the helper, sends it one job after another, and replaces a dead one. (The
    same thread throughout, since the kernel may kill a helper with the thread that started it, see
    ``die_with_parent``.)
    """

    def __init__(self, workers: int, prepare: Callable[..., Any], *arguments: Any, imports: str | None = None) -> None:
        """``prepare(*arguments)`` is each helper's first job, for its imports; it may take ``START_SECONDS``. The
        imports of ``imports`` are there before, see ``start_python``.
        """
        self._imports = imports
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="autotune-pool")
        self._prepare: Job = (prepare, arguments)
        self._mine = threading.local()
        self._lock = threading.Lock()
        self._helpers: set[_Helper] = set()
        self._closed = False

    def submit(self, seconds: float, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Let a helper call a module's function. The future raises the function's error, HelperDied, or HelperStuck
        after ``seconds`` from the job's start.
        """
        return self._threads.submit(self._call, (function, arguments), seconds)

    def close(self) -> None:
        """Kill every helper and cancel the jobs that none has begun."""
        with self._lock:
            self._closed = True
            self._threads.shutdown(wait=False, cancel_futures=True)
            for helper in self._helpers:
                helper.kill()

    def _call(self, job: Job, seconds: float) -> Any:
        """On a thread: run the job on its helper."""
        helper: _Helper | None = getattr(self._mine, "helper", None)
        first = helper is None
        helper = self._mine.helper = helper or self._started()
        try:
            if first:
                helper.call(self._prepare, START_SECONDS)
            value, error = helper.call(job, seconds)
        except (HelperDied, HelperStuck):
            with self._lock:
                self._helpers.discard(helper)
            self._mine.helper = None
            raise
        if error is not None:
            raise error
        return value

    def _started(self) -> _Helper:
        helper = _Helper(self._imports)
        with self._lock:
            if not self._closed:
                self._helpers.add(helper)
                return helper
        helper.kill()
        raise HelperDied("the pool was closed")


class _Helper:
    """One process and the connection to it."""

    def __init__(self, imports: str | None) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            self._process = start_python("autotune.processes.helper", theirs, imports=imports)

    def call(self, job: Job, seconds: float) -> Answer:
        """Call a function; raises HelperDied or HelperStuck, after which the helper is gone."""
        try:
            self._connection.send(job)
            if self._connection.poll(seconds):
                answer: Answer = self._connection.recv()
                return answer
        except (EOFError, OSError):
            code = self.kill()
            raise HelperDied(signal.Signals(-code).name if code < 0 else f"exit code {code}") from None
        self.kill()
        raise HelperStuck(f"no answer within {seconds:.0f} s")

    def kill(self) -> int:
        """Kill the helper and its children; returns its exit code, its own if it had ended already."""
        kill_all([self._process])
        return self._process.wait()
