"""Screening: a pool of processes compiles ahead of the ranks, which then find the kernels in Triton's cache."""

from __future__ import annotations

import functools
import math
import os
import statistics
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from autotune.config import Config
from autotune.machine import Machine
from autotune.outcome import Evaluation, Outcome
from autotune.problem import Problem
from autotune.processes.pool import HelperDied, HelperStuck, Pool
from autotune.ranks.gang import IMPORTS
from autotune.settings import COMPILE_WORKERS
from autotune.task import Task
from autotune.tuning.search import Candidate
from autotune.workloads import Workload, reference_of, workload

COMPILE_SECONDS = 90.0
"""Seconds that compiling one config may take; most take 2 to 6."""

MOST_WORDS = 300
"""Characters kept of an exception's text."""

MOST_WORKERS = 64

MOST_AHEAD = 48
"""Configs proposed ahead at most: the search proposes them without knowing the latest results."""

BLIND = 8
"""Configs ahead until compile and evaluation times are known."""

SPARE = 2
"""Configs ahead beyond the number that keeps the ranks busy on average."""

RECENT = 16
"""Compilations and evaluations in the moving averages."""


class Screen:
    """A pool of compilers for one problem. ``submit`` returns at once, ``verdict`` waits."""

    def __init__(self, workload: Workload, task: Task[Problem]) -> None:
        """Starts no process before the first ``submit``, and none under the interpreter."""
        self._machine = task.machine
        self.turn_to(workload, task.problem)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.workers = COMPILE_WORKERS.value() or max(1, min(MOST_WORKERS, cores - task.problem.world_size))
        self.lookahead = 1 if task.machine.is_interpreter else min(self.workers, MOST_AHEAD)
        self._pool: Pool | None = None

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def turn_to(self, workload: Workload, problem: Problem) -> None:
        self._job = (reference_of(workload), problem.as_dict(), self._machine)

    def start(self) -> None:
        """Start the compilers' imports, which take seconds, without waiting. Otherwise the first ``submit`` does it."""
        if not self._machine.is_interpreter:
            for _ in range(self.workers):
                self._submit(_import, self._job[0])

    def submit(self, config: Config) -> Future[Any] | None:
        """Begin to compile; None if nothing is compiled."""
        if self._machine.is_interpreter:
            return None
        return self._submit(_compile, *self._job, config.to_json())

    def verdict(self, config: Config, future: Future[Any] | None) -> Evaluation | None:
        """The outcome if the config must not run, else None."""
        if future is None:
            return None
        try:
            refused: Evaluation | None = future.result()
            return refused
        except HelperStuck:
            reason = f"the compiler took more than {COMPILE_SECONDS:.0f} s"
        except HelperDied as end:
            reason = f"the compiler crashed: {end}"
        return Evaluation(Outcome.DID_NOT_COMPILE, reason)

    def _submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        if self._pool is None:
            self._pool = Pool(self.workers, _import, self._job[0], imports=IMPORTS)
        return self._pool.submit(COMPILE_SECONDS, function, *arguments)


class Ahead:
    """Candidates compiled while others are measured; taken when ready, the oldest first.

    Candidates ahead were proposed without the latest results, so there are no more than keep the ranks busy: the number
    evaluated during one compilation (Little's law), plus two.
    """

    def __init__(self, screen: Screen) -> None:
        """Holds at most the screen's ``lookahead``."""
        self._screen = screen
        self._waiting: list[tuple[Candidate, Future[Any] | None]] = []
        self._compiling: deque[float] = deque(maxlen=RECENT)
        self._evaluating: deque[float] = deque(maxlen=RECENT)
        self._taken: float | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def depth(self) -> int:
        """The number of candidates ahead now."""
        wanted = BLIND
        if self._compiling and self._evaluating:
            compiling = statistics.mean(tuple(self._compiling))
            evaluating = statistics.median(self._evaluating)  # a restart of the ranks does not count
            wanted = SPARE + math.ceil(compiling / max(evaluating, 1e-6))
        return min(wanted, self._screen.lookahead)

    def fill(self, ask: Callable[[], Candidate | None]) -> None:
        """Ask for candidates until ``depth`` are ahead or there are no more."""
        while len(self._waiting) < self.depth and (candidate := ask()) is not None:
            future = self._screen.submit(candidate.config)
            if future is not None and self._taken is not None:  # the first ones wait for the compilers to start
                future.add_done_callback(functools.partial(self._compiled, time.monotonic()))
            self._waiting.append((candidate, future))

    def _compiled(self, submitted: float, future: Future[Any]) -> None:
        self._compiling.append(time.monotonic() - submitted)

    def take(self) -> tuple[Candidate, Evaluation | None]:
        """The next candidate, with its outcome if it must not run. Waits until one has been compiled."""
        if self._taken is not None:
            self._evaluating.append(time.monotonic() - self._taken)
        running = [future for _, future in self._waiting if future is not None]
        if len(running) == len(self._waiting):
            wait(running, timeout=COMPILE_SECONDS, return_when=FIRST_COMPLETED)
        ready = (i for i, (_, future) in enumerate(self._waiting) if future is None or future.done())
        candidate, future = self._waiting.pop(next(ready, 0))
        verdict = self._screen.verdict(candidate.config, future)
        self._taken = time.monotonic()
        return candidate, verdict


def _import(name: str) -> None:
    """Import the workload in a worker, and with it torch and Triton's compiler."""
    import triton.compiler  # noqa: F401

    workload(name)


def _compile(name: str, fields: dict[str, Any], machine: Machine, config: str) -> Evaluation | None:
    """Compile the config's kernels in a worker; the outcome if it must not run."""
    from autotune.kernels.launching.plan import CompileError, compile_offline_for
    from autotune.kernels.launching.residency import starvation

    found = workload(name)
    task = Task(found.problem_type.from_dict(fields), machine)
    compile_offline_for(machine)
    try:
        kernels = found.compile(task, Config.from_json(config))
    except CompileError as error:
        return Evaluation(Outcome.DID_NOT_COMPILE, str(error))
    except Exception as error:  # noqa: BLE001  a user's workload or a compiler: whatever it raises is this config's end
        return Evaluation(Outcome.DID_NOT_COMPILE, f"{type(error).__name__}: {error}"[:MOST_WORDS])
    shared = max((kernel.shared_memory for kernel in kernels), default=0)
    if shared > machine.shared_memory:
        reason = f"{shared} bytes of shared memory; the device has {machine.shared_memory}"
        return Evaluation(Outcome.OUT_OF_RESOURCES, reason)
    starved = starvation(kernels, machine)
    return Evaluation(Outcome.INVALID, starved) if starved is not None else None
