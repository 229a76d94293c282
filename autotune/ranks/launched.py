"""The launcher's ranks as a command's gang: rank 0 runs the command, the others serve it, whatever host they are on."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from autotune.agreement import Agreement
from autotune.config import Config
from autotune.errors import GangError, MachineTooSmall
from autotune.machine import machine
from autotune.outcome import Evaluation, Outcome
from autotune.problem import Problem
from autotune.ranks.evaluation import MeasurePlan
from autotune.ranks.launch import Launch
from autotune.ranks.program_ranks import Over, ProgramRanks
from autotune.ranks.protocol import Done, Failed, MeasureBarrier, Request, Trace, Turn
from autotune.ranks.rank import backend
from autotune.task import Task
from autotune.workloads import Workload, reference_of
from autotune.workloads import workload as workload_named

MOMENT = 0.05
"""Seconds between two looks of a rank for a gang to serve: rank 0 may take its time."""

GOODBYE = timedelta(minutes=1)
"""For so long rank 0 waits until the others know that all is over: their store may be in its process."""


class Launched:
    """This process among the launcher's ranks; made at the beginning, since rank 0 may hold the others' store."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        url = f"env://?rank={launch.rank}&world_size={launch.world_size}"
        self._store: Any = next(rendezvous(url))[0]
        self._gangs = 0

    def serve(self) -> None:
        """Take part in every gang of rank 0, until it ends. Raises GangError where it has gone."""
        try:
            while (asked := self._heard()) is not None:
                self._follow(*asked)
        finally:
            with suppress(RuntimeError):  # rank 0 has gone, and the store with it
                self._store.add("autotune/gone", 1)

    def _follow(self, name: str, sizes: dict[str, Any], heap_bytes: int) -> None:
        workload = workload_named(name)
        with self.joined() as (agreement, group):
            task = Task(workload.problem_type.from_dict(sizes), machine())
            with ProgramRanks(workload, task, agreement, group, heap_bytes=heap_bytes).released() as ranks:
                ranks.follow()

    def end(self) -> None:
        """Let the other ranks go."""
        with suppress(RuntimeError):  # they have gone
            self.tell(None)
            if self._gangs == 1 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
                return  # nobody was asked for anything, maybe nobody is there, and the store is the launcher's
            deadline = time.monotonic() + GOODBYE.total_seconds()
            while self._store.add("autotune/gone", 0) < self.launch.world_size - 1 and time.monotonic() < deadline:
                time.sleep(MOMENT)

    def tell(self, asked: tuple[str, dict[str, Any], int] | None) -> None:
        """Tell the other ranks of a gang: its workload, problem and bytes of heap; None: there are no more."""
        self._gangs += 1
        self._store.set(f"autotune/gang/{self._gangs}", pickle.dumps(asked))

    def _heard(self) -> tuple[str, dict[str, Any], int] | None:
        self._gangs += 1
        key = f"autotune/gang/{self._gangs}"
        try:
            while not self._store.check([key]):
                time.sleep(MOMENT)
            asked: tuple[str, dict[str, Any], int] | None = pickle.loads(self._store.get(key))
        except RuntimeError as error:
            raise GangError(f"rank 0, whose command this rank serves, has gone with the store: {error}") from error
        return asked

    @contextmanager
    def joined(self) -> Iterator[tuple[Agreement, Any]]:
        """The agreement of all ranks, and a group for the heap. Collective."""
        if not dist.is_initialized():
            here = self.launch
            dist.init_process_group(
                **backend(machine(), here.local_rank, here.local_world_size), store=self._store, rank=here.rank,
                world_size=here.world_size, timeout=timedelta(minutes=5),
            )  # fmt: skip
        with closing(Agreement.among()) as agreement, closing(Agreement.among()) as of_heap:
            yield agreement, of_heap.group


class LaunchedGang(ProgramRanks):
    """Rank 0's side of a gang. The ranks join, and open the heap, at ``start``.

    Unlike ``Gang`` it kills and restarts nothing: what breaks a rank ends the command, and with torchrun's
    ``--max-restarts`` the next one goes on with the study.
    """

    def __init__(
        self, launched: Launched, workload: Workload, task: Task[Problem], heap_bytes: int, warm_call: str
    ) -> None:
        if task.problem.world_size != launched.launch.world_size:
            raise MachineTooSmall(
                f"world_size={task.problem.world_size}: torchrun has started {launched.launch.world_size} ranks, and "
                "all of them take part; start as many as the problem has"
            )
        super().__init__(workload, task, Agreement(), None, warm_call, heap_bytes)
        self._launched = launched
        self._joined: Any = None
        self._lost: GangError | None = None

    def start(self) -> None:
        if self._joined is None:
            self._launched.tell((reference_of(self.workload), self.problem.as_dict(), self._heap_bytes))
            self._joined = self._launched.joined()
            self._agreement, self._group = self._joined.__enter__()
            self._over = False
        super().start()

    def turn_to(self, workload: Workload, problem: Problem) -> None:
        if workload.heap_bytes(problem) > self._heap_bytes:
            self.close()
            self._heap_bytes = workload.heap_bytes(problem)
        super().turn_to(workload, problem)

    def turn(self, request: Turn | MeasureBarrier | Trace) -> list[Done] | Failed:
        return self.everyone(request, "measure")

    def evaluate(self, config: Config, seed: int, plan: MeasurePlan) -> Evaluation:
        """A config by which the ranks are lost has its outcome: who starts again does not try it again."""
        try:
            return super().evaluate(config, seed, plan)
        except GangError as error:
            if self._lost:
                raise
            self._lost = error
            return Evaluation(Outcome.CRASHED, str(error))

    def everyone(self, request: Request, phase: str) -> list[Done] | Failed:
        if self._lost:
            raise self._lost
        self._over = True  # unless it comes to its end
        found = super().everyone(request, phase)
        self._over = False
        return found

    def close(self) -> None:
        """Let the ranks wait for the next gang. Where one was interrupted in a request they are lost."""
        if self._joined is None:
            return
        with suppress(GangError):
            if not self._over:
                self._agreement.broadcast(lambda: Over(None))
        self.release(together=not self._over)
        self._joined.__exit__(None, None, None)
        self._joined = None
