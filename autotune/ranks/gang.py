"""The gang's supervisor: starts the ranks, enforces deadlines, kills and restarts hung ranks."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path

from autotune.config import Config
from autotune.errors import GangError, WorkloadError
from autotune.machine import check_interpreter
from autotune.outcome import Evaluation, Outcome
from autotune.problem import Problem
from autotune.processes.folder import OwnFolder
from autotune.processes.memory import advice, shortage
from autotune.processes.python import DYING, Process, import_ahead, kill_all, start_python
from autotune.ranks.early_stop import slowest
from autotune.ranks.evaluation import SPIN_LIMITS, AllRanks, MeasurePlan, check_code, check_same_work, kind_of
from autotune.ranks.protocol import Bug, Done, Failed, MeasureBarrier, Open, Reply, Request, SetUp, Trace, Turn
from autotune.settings import HEAP_BYTES
from autotune.task import Task
from autotune.timeline import Traced
from autotune.workloads import Workload, reference_of

DEADLINES: Mapping[str, Mapping[str, float]] = {
    "gpu": {"start": 180.0, "compile": 120.0, "check": 30.0, "measure": 30.0, "trace": 3.0},
    "interpreter": {"start": 300.0, "compile": 60.0, "check": 60.0, "measure": 120.0, "trace": 120.0},
}
"""Deadlines of the phases, in seconds, for all ranks together."""

IMPORTS = "autotune.ranks.imports"
"""The module that ranks and compilers find imported, see ``start_python``."""

GRACE = 3.0
"""Seconds for the other ranks after one has failed: they may wait for it in a collective forever."""

TRACED_CALLS, TRACED_TIME = {"gpu": 10, "interpreter": 1}, 20e3
"""Calls by which the slowdown of a traced one is told, and the microseconds of theirs beyond which they are fewer."""

MOST_RESTARTS = 10
"""After this many in a row without a measured config, the machine is to blame, not the configs."""


@dataclass
class _Phase:
    """The replies to one request to all ranks."""

    replies: list[Reply | None]
    silent: list[int] = field(default_factory=list)
    dead: dict[int, str] = field(default_factory=dict)


class Gang(AllRanks):
    """The rank processes and their problem, as a context manager; ``evaluate`` never hangs and never raises for a
    config.
    """

    def __init__(
        self, workload: Workload, task: Task[Problem], heap_bytes: int = 0,
        deadlines: Mapping[str, float] | None = None, warm_call: str = "",
    ) -> None:  # fmt: skip
        """Nothing is started before ``start`` or ``with``. ``heap_bytes`` is a minimum, for later problems.

        ``deadlines`` are seconds by phase instead of ``DEADLINES``; ``warm_call``: see ``MeasureOverhead``.
        """
        self.workload, self.problem, self.machine = workload, task.problem, task.machine
        self.restarts = 0
        self.start_seconds: dict[str, float] = {}
        """Seconds of the last start: until the slowest rank had its imports, had joined, had its heap; the set-up."""
        self._in_vain = 0
        self.warm_call = warm_call
        self._rates: dict[str, dict[str, float]] = {}
        self._heap_bytes = max(heap_bytes, workload.heap_bytes(task.problem))
        self._heap_setting = HEAP_BYTES.value()
        self._kind = kind_of(task.machine)
        self._deadlines = {**DEADLINES[self._kind], **(deadlines or {})}
        self._processes: list[Process] = []
        self._connections: list[Connection] = []
        self._folder: OwnFolder | None = None
        self._starts = 0

    def __enter__(self) -> Gang:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start every rank that is not running, and wait until all have set the problem up.

        Raises GangError with a rank's last words, and VersionsClash.
        """
        if self._alive():
            return
        if self.machine.is_interpreter:
            check_interpreter()
        self._kill()
        if self._folder is None:
            self._folder = OwnFolder()
        self._starts += 1
        begun, environment = time.monotonic(), environment_of_ranks(self.machine.is_interpreter)
        for rank in range(self.problem.world_size):
            ours, theirs = Pipe()
            with theirs, open(self._log(rank), "wb") as log:
                process = start_python("autotune.ranks.rank", theirs, environment=environment, log=log, imports=IMPORTS)
            self._processes.append(process)
            self._connections.append(ours)
        heap_bytes = self._heap_setting or self._heap_bytes
        openings = [
            Open(
                self.machine, rank, self.problem.world_size,
                str(self._folder.path / f"rendezvous{self._starts}"), heap_bytes, SPIN_LIMITS[self._kind], begun,
            )
            for rank in range(self.problem.world_size)
        ]  # fmt: skip
        opened = self._begin(openings)
        set_up = time.monotonic()
        self._set_up()
        self.start_seconds = {stage: max(done.seconds[stage] for done in opened) for stage in opened[0].seconds}
        self.start_seconds["set-up"] = time.monotonic() - set_up

    def turn_to(self, workload: Workload, problem: Problem) -> None:
        """Switch to another problem. Running ranks stay if their number fits and their heap suffices."""
        stay = self._alive() and problem.world_size == self.problem.world_size
        stay = stay and workload.heap_bytes(problem) <= self._heap_bytes
        self.workload, self.problem = workload, problem
        self._heap_bytes = max(self._heap_bytes, workload.heap_bytes(problem))
        if stay:
            self._set_up()
        else:
            self._kill()

    def _set_up(self) -> None:
        """Have the ranks set the problem up; raises GangError if their code differs from the driver's."""
        request = SetUp(reference_of(self.workload), self.problem.as_dict())
        answers = self._begin([request] * self.problem.world_size)
        try:
            check_code(self.workload, answers)
        except GangError:
            self.close()
            raise

    def _begin(self, requests: Sequence[Request]) -> list[Done]:
        answers = self._ask(requests, "start")
        if isinstance(answers, Failed):
            last_words = f"; {advice()}" if shortage(answers.reason) else self.last_words()
            self.close()
            raise GangError(f"the ranks did not start: {answers.reason}{last_words}")
        return answers

    def close(self) -> None:
        """End every rank, by force if need be, and leave nothing behind. May be called twice."""
        self._kill()
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def evaluate(self, config: Config, seed: int, plan: MeasurePlan) -> Evaluation:
        self._revive()  # whatever killed an idle rank, it was not this config
        found = super().evaluate(config, seed, plan)
        if found.outcome is Outcome.MEASURED:
            self._in_vain = 0
        return found

    def prove(self, config: Config, seed: int, latency: float) -> Evaluation | None:
        self._revive()
        return super().prove(config, seed, latency)

    def measure_rates(self, dtype: str) -> dict[str, float]:
        """Measured once per element type."""
        if not self._rates.get(dtype):
            self._rates[dtype] = super().measure_rates(dtype)
        return self._rates[dtype]

    def turn(self, request: Turn | MeasureBarrier | Trace) -> list[Done] | Failed:
        """A turn of ``tune taxes`` on all ranks, whose config has been evaluated before."""
        self._revive()
        return self.everyone(request, "measure")

    def trace(self, config: Config, latency: float) -> Traced | Failed:
        """See ``Evaluator``. Ranks that break in it are not started again before the next problem."""
        if not self._alive():
            return Failed(Outcome.CRASHED, "the ranks are not running")
        twin, found = self.workload.traced(config), list[list[Done]]()
        calls = max(1, min(TRACED_CALLS[self._kind], int(TRACED_TIME / latency)))
        turns: list[Turn | Trace] = [Turn(each, min(2, calls - 1), calls) for each in dict.fromkeys([config, twin])]
        for request in (*turns, Trace()):
            answers = self._ask([request] * self.problem.world_size, "trace")
            if isinstance(answers, Failed):
                if answers.broken:
                    self._kill()
                return answers
            found.append(answers)
        plain, *slower = (statistics.median(slowest([each.times for each in answers])) for answers in found[:-1])
        call = Traced.of(1.0, [each.events for each in found[-1]])
        if not all(call.ranks):
            return Failed(Outcome.INVALID, "nothing of the call can be traced")
        return replace(call, slowdown=(slower[0] if slower else call.end) / plain)

    def last_words(self) -> str:
        """The last lines of every running rank's log."""
        words = []
        for rank in range(self.problem.world_size):
            lines = self._log(rank).read_text(errors="replace").strip().splitlines()
            words += [f"\nrank {rank}: {line[:300]}" for line in lines[-3:]]
        return "".join(words)

    def everyone(self, request: Request, phase: str) -> list[Done] | Failed:
        """Send one request to all ranks. If one breaks or is silent, the gang is restarted."""
        if not self._processes:
            self._restart()
        answers = self._ask([request] * self.problem.world_size, phase)
        if isinstance(answers, Failed):
            return replace(answers, restart=self._restart()) if answers.broken else answers
        check_same_work(answers)
        return answers

    def _ask(self, requests: Sequence[Request], phase: str) -> list[Done] | Failed:
        """Send each rank its request and collect the replies until the deadline; or the one failure that stands for
        all.
        """
        result = _Phase([None] * len(requests))
        for rank, request in enumerate(requests):
            try:
                self._connections[rank].send(request)
            except OSError:
                result.dead[rank] = self._epitaph(rank)
        deadline = time.monotonic() + self._deadlines[phase]
        open_ranks = {self._connections[rank]: rank for rank in range(len(requests)) if rank not in result.dead}
        if result.dead:
            deadline = time.monotonic() + GRACE
        while open_ranks and (left := deadline - time.monotonic()) > 0:
            for connection in wait(list(open_ranks), timeout=left):
                assert isinstance(connection, Connection)
                rank = open_ranks.pop(connection)
                try:
                    reply = connection.recv()
                except (EOFError, OSError):
                    result.dead[rank] = self._epitaph(rank)
                else:
                    result.replies[rank] = self._explained(rank, reply)
                if not isinstance(result.replies[rank], Done):
                    deadline = min(deadline, time.monotonic() + GRACE)
        result.silent = sorted(open_ranks.values())
        return self._verdict(result, phase)

    def _explained(self, rank: int, reply: Reply) -> Reply:
        """An unexpected error that only says that there is no memory is no bug."""
        if isinstance(reply, Bug) and not reply.told:
            short = shortage(reply.traceback, self._processes[rank].pid)
            if short:
                return Failed(Outcome.OUT_OF_RESOURCES, short, broken=True)
        return reply

    def _verdict(self, phase: _Phase, name: str) -> list[Done] | Failed:
        """All ranks' replies if all went well, else the one outcome that stands for them.

        Raises GangError for a bug, WorkloadError where it is one of a user's workload.
        """
        for rank, reply in enumerate(phase.replies):
            # Where a rank died, the others fail in whatever they were waiting for it: that is no bug.
            if isinstance(reply, Bug) and not phase.dead:
                self.close()
                whose = f"workload {reference_of(self.workload)}: rank {rank}"
                if reply.told:
                    raise WorkloadError(f"{whose}: {reply.traceback}")
                raise GangError(f"{whose} raised an unexpected error (phase {name}):\n{reply.traceback}")
        failed = [(rank, reply) for rank, reply in enumerate(phase.replies) if isinstance(reply, Failed)]
        broken = bool(phase.silent or phase.dead) or any(reply.broken for _, reply in failed)
        if failed:
            rank, reply = failed[0]
            return Failed(reply.outcome, f"rank {rank}: {reply.reason}", broken)
        if phase.dead:
            rank, epitaph = next(iter(phase.dead.items()))
            return Failed(Outcome.CRASHED, f"rank {rank} died in phase {name}: {epitaph}", True)
        if phase.silent:
            ranks = ", ".join(map(str, phase.silent))
            allowed = self._deadlines[name]
            return Failed(
                Outcome.TIMED_OUT, f"no answer from rank {ranks} in phase {name} within {allowed:.0f} s", True
            )
        return [reply for reply in phase.replies if isinstance(reply, Done)]

    def _restart(self) -> float:
        """Kill the remaining ranks and start again; returns the seconds. Raises GangError after too many restarts."""
        begun = time.monotonic()
        self.restarts += 1
        self._in_vain += 1
        if self._in_vain > MOST_RESTARTS:
            self.close()
            raise GangError(
                f"the ranks were restarted {MOST_RESTARTS} times without measuring a config in between; the machine "
                "seems to be at fault: run tune doctor"
            )
        self._kill()
        self.start()
        return time.monotonic() - begun

    def _revive(self) -> None:
        if not self._alive():
            self._restart()

    def _alive(self) -> bool:
        return bool(self._processes) and all(process.poll() is None for process in self._processes)

    def _kill(self) -> None:
        for connection in self._connections:
            connection.close()
        kill_all(self._processes)
        self._processes, self._connections = [], []

    def _epitaph(self, rank: int) -> str:
        process = self._processes[rank]
        try:
            code = process.wait(timeout=DYING)
        except subprocess.TimeoutExpired:
            return "closed its connection"
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        log = self._log(rank).read_text(errors="replace").strip()
        return f"{how}; {shortage(log) or log.splitlines()[-1][:200]}" if log else how

    def _log(self, rank: int) -> Path:
        assert self._folder is not None
        return self._folder.path / f"rank{rank}.log"


def environment_of_ranks(interpreted: bool) -> dict[str, str]:
    """Environment of this process, and what ranks need beside."""
    environment = dict(os.environ)
    environment.pop("TRITON_INTERPRET", None)
    environment.setdefault("GLOO_SOCKET_IFNAME", "lo")  # one host: its name need not resolve
    if interpreted:
        environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return environment


def import_for_ranks(interpreted: bool) -> None:
    """Begin with the imports of ranks that will be started; returns at once."""
    import_ahead(IMPORTS, environment_of_ranks(interpreted))
