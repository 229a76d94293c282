"""A running program's own ranks as the tuning loop's evaluator; rank 0 drives, and is one of them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import torch

from autotune.agreement import Agreement, Released, raising
from autotune.errors import GangError, NotTuned
from autotune.heap import open_heap
from autotune.heap.arena import SymmetricHeap
from autotune.problem import Problem
from autotune.ranks.evaluation import SPIN_LIMITS, AllRanks, check_code, check_same_work, kind_of
from autotune.ranks.protocol import Done, Failed, Reply, Request, SetUp
from autotune.ranks.rank import Rank
from autotune.settings import HEAP_BYTES
from autotune.task import Task
from autotune.workloads import Workload, reference_of

T = TypeVar("T")


@dataclass(frozen=True)
class Over:
    """The last message of rank 0: no more requests, and the result."""

    value: Any


@dataclass(frozen=True)
class _StillHere:
    """Rank 0 has no request yet; the others keep waiting without a time-out."""


class ProgramRanks(AllRanks):
    """Rank 0 calls ``lead`` and the others ``follow``; all ranks carry out rank 0's requests.

    No process can be killed here. A rank that fails in an expected way reports at the next barrier, which releases the
    others, and the config has its outcome. An unexpected error is raised on every rank, and so is GangError if a rank
    loses its device or does not come back in time.
    """

    restarts = 0

    def __init__(
        self, workload: Workload, task: Task[Problem], agreement: Agreement, group: Any, warm_call: str = "",
        heap_bytes: int = 0,
    ) -> None:  # fmt: skip
        """``group``, a gloo group over all ranks, serves the heap alone; ``warm_call``: see ``MeasureOverhead``;
        ``heap_bytes`` is a minimum, for later problems.

        Nothing is allocated before a request.
        """
        self.workload, self.problem, self.machine = workload, task.problem, task.machine
        self._agreement, self._group, self.warm_call = agreement, group, warm_call
        self._heap_bytes = max(heap_bytes, workload.heap_bytes(task.problem))
        self._heap: SymmetricHeap | None = None
        self._rank: Rank | None = None
        self._over = False
        """True once the ranks are out of step, or all have raised: no more messages."""

    def lead(self, action: Callable[[], T]) -> T:
        """Run on rank 0 the function that makes the requests. ``follow`` ends with its result or error."""
        try:
            value = action()
        except Exception as error:  # whatever it is: the others raise the same, instead of waiting for a request
            if not self._over:
                self._agreement.broadcast(raising(error))
            raise
        message: Over = self._agreement.broadcast(lambda: Over(value))
        result: T = message.value
        return result

    def follow(self) -> Any:
        """Carry out the requests on the other ranks until the end."""
        while True:
            message: Over | _StillHere | Request = self._agreement.broadcast(_nothing)
            if isinstance(message, Over):
                return message.value
            if not isinstance(message, _StillHere):
                self._carry_out(message)

    def keep_waiting(self) -> None:
        """Send the other ranks a sign of life from rank 0, between two requests."""
        self._agreement.broadcast(_StillHere)

    @contextmanager
    def released(self) -> Iterator[Self]:
        """Release the ranks at the end: together, unless an error has set them apart."""
        whole = False
        try:
            yield self
            whole = True
        finally:
            self.release(together=whole)

    def release(self, *, together: bool) -> None:
        """Free heap and memory; with ``together``, all ranks being here, only once none of them uses it."""
        if self._heap is not None and together:
            self._agreement.any(False)
        self._rank = None
        gc.collect()  # a captured graph and the operation that it calls hold each other
        torch.cuda.empty_cache()
        if self._heap is not None:
            self._heap.close()
            self._heap = None

    def start(self) -> None:
        found = self.everyone(SetUp(reference_of(self.workload), self.problem.as_dict()), "start")
        if isinstance(found, Failed):
            raise NotTuned(f"{self.problem}: could not be set up: {found.reason}")
        check_code(self.workload, found)

    def turn_to(self, workload: Workload, problem: Problem) -> None:
        """Switch to another problem, whose heap is no larger; ``start`` has the ranks set it up."""
        self.workload, self.problem = workload, problem

    def close(self) -> None:
        """Send no more requests: the loop was interrupted, perhaps within a request."""
        self._over = True

    def everyone(self, request: Request, phase: str) -> list[Done] | Failed:
        try:
            self._agreement.broadcast(lambda: request)
        except GangError:
            self._over = True
            raise
        return self._carry_out(request)

    def _carry_out(self, request: Request) -> list[Done] | Failed:
        """This rank's part of a request, and every rank's replies, from which all draw the same conclusion."""
        try:
            replies = self._agreement.gather(lambda: self._answer(request))
            for rank, reply in enumerate(replies):
                if isinstance(reply, Failed):
                    return _failure(reply, rank)
            done = [reply for reply in replies if isinstance(reply, Done)]
            check_same_work(done)
            return done
        except BaseException:  # Ctrl-C too: whoever leaves in the midst of a request has nothing more to say
            self._over = True
            raise

    def _answer(self, request: Request) -> Reply | None:
        """None if another rank's failure released this one."""
        try:
            return self._agreement.or_release(
                lambda: self._opened().answer(request), failed=lambda reply: isinstance(reply, Failed)
            )
        except Released:
            return None

    def _opened(self) -> Rank:
        if self._rank is None:
            self._heap = open_heap(HEAP_BYTES.value() or self._heap_bytes, self._group)
            self._heap.host_barrier = self._agreement.barrier
            self._rank = Rank(self._heap, self.machine, SPIN_LIMITS[kind_of(self.machine)])
        return self._rank


def _failure(reply: Failed, rank: int) -> Failed:
    if reply.broken:
        raise GangError(
            f"rank {rank}: {reply.reason}; its device can no longer be used, and ranks that are not the tuner's own "
            "cannot be started again: leave this config out, or tune with the command"
        )
    return Failed(reply.outcome, f"rank {rank}: {reply.reason}")


def _nothing() -> Any:
    """The empty answer of a following rank."""
