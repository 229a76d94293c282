"""The crew: the ranks of a running program as the tuning loop's evaluator; rank 0 drives, and is one of them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeVar

import torch

from autotune.agreement import Agreement, Released
from autotune.config import Config
from autotune.errors import GangError
from autotune.heap import open_heap
from autotune.heap.arena import SymmetricHeap
from autotune.machine import Machine
from autotune.outcome import Evaluation, Latency
from autotune.problem import Problem
from autotune.ranks.evaluation import (
    MeasurePlan,
    check_same_work,
    evaluate,
    kind_of,
    measure_parts,
    measure_rates,
    prove,
)
from autotune.ranks.gang import SPIN_LIMITS
from autotune.ranks.protocol import Done, Failed, Reply, Request, SetUp
from autotune.ranks.rank import Rank
from autotune.settings import HEAP_BYTES
from autotune.workloads import Workload, reference_of

T = TypeVar("T")


@dataclass(frozen=True)
class _Over:
    """The last message of rank 0: there are no more requests, and this is what came of them."""

    value: Any


@dataclass(frozen=True)
class _StillHere:
    """Rank 0 has nothing to ask yet; the others wait on, without running into their time-out."""


class Crew:
    """Rank 0 calls ``lead`` and the others ``follow``; what the first one asks, all of them carry out.

    Nobody can be killed here. A rank that fails as configs do says so at the next barrier, which
    releases the others, and the config has its outcome. An unexpected error is raised on every rank; so is GangError
    where a rank's device is lost, or where it is not back in time.
    """

    restarts = 0

    def __init__(
        self, workload: Workload, problem: Problem, machine: Machine, agreement: Agreement, group: Any
    ) -> None:
        """``group``, a gloo group over all ranks, is for the heap alone. Nothing is allocated before a request."""
        self._workload, self._problem, self._machine = workload, problem, machine
        self._agreement, self._group = agreement, group
        self._heap: SymmetricHeap | None = None
        self._rank: Rank | None = None
        self._over = False
        """The ranks no longer are at the same place, or all have raised: there is nothing more to say to them."""

    def lead(self, action: Callable[[], T]) -> T:
        """On rank 0: do what makes the requests. What comes of it, or the error, is what ``follow`` ends with."""
        try:
            value = action()
        except Exception as error:  # whatever it is: the others raise the same, instead of waiting for a request
            if not self._over:
                self._agreement.broadcast(partial(_raise, error))
            raise
        message: _Over = self._agreement.broadcast(lambda: _Over(value))
        result: T = message.value
        return result

    def follow(self) -> Any:
        """On the other ranks: carry out what is asked, until it is over."""
        while True:
            message: _Over | _StillHere | Request = self._agreement.broadcast(_nothing)
            if isinstance(message, _Over):
                return message.value
            if not isinstance(message, _StillHere):
                self._carry_out(message)

    def keep_waiting(self) -> None:
        """On rank 0: a sign of life for the others, between two requests."""
        self._agreement.broadcast(_StillHere)

    def release(self, *, together: bool) -> None:
        """Give heap and memory back; ``together``, all ranks being here, only once none of them uses it any more."""
        if self._heap is not None and together:
            self._agreement.any(False)
        self._rank = None
        gc.collect()  # a captured graph and the operation that it calls hold each other
        torch.cuda.empty_cache()
        if self._heap is not None:
            self._heap.close()
            self._heap = None

    def start(self) -> None:
        """Set the problem up on all ranks."""
        failed = self._everyone(SetUp(reference_of(self._workload), self._problem.as_dict()), "start")
        if isinstance(failed, Failed):
            raise GangError(f"the problem could not be set up: {failed.reason}")

    def close(self) -> None:
        """Ask for nothing more: the loop was interrupted, maybe in the midst of a request."""
        self._over = True

    def evaluate(self, config: Config, seed: int, plan: MeasurePlan) -> Evaluation:
        """Compile, check and measure one config."""
        return evaluate(self._everyone, self._workload, self._problem, self._machine, config, seed, plan)

    def prove(self, config: Config, seed: int, latency: float) -> Evaluation | None:
        """Check a winner once more, for far longer; None if every result is right. ``latency`` in microseconds."""
        return prove(self._everyone, self._workload, self._problem, self._machine, config, seed, latency)

    def measure_parts(self, plan: MeasurePlan) -> dict[str, Latency]:
        """The operation's parts alone; empty where that failed."""
        return measure_parts(self._everyone, plan)

    def measure_rates(self, dtype: str) -> dict[str, float]:
        """What a device and its links do in a microsecond, by resource; empty where that failed."""
        return measure_rates(self._everyone, dtype)

    def _everyone(self, request: Request, phase: str) -> list[Done] | Failed:
        try:
            self._agreement.broadcast(lambda: request)
        except GangError:
            self._over = True
            raise
        return self._carry_out(request)

    def _carry_out(self, request: Request) -> list[Done] | Failed:
        """This rank's part of a request, and every rank's replies: from the same ones all conclude the same."""
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
        """None where another rank's failure has released this one."""
        try:
            return self._agreement.or_release(
                lambda: self._opened().answer(request), failed=lambda reply: isinstance(reply, Failed)
            )
        except Released:
            return None

    def _opened(self) -> Rank:
        if self._rank is None:
            wanted = HEAP_BYTES.value() or self._workload.heap_bytes(self._problem)
            self._heap = open_heap(wanted, self._group)
            self._heap.meet = self._agreement.barrier
            self._rank = Rank(self._heap, self._machine, SPIN_LIMITS[kind_of(self._machine)])
        return self._rank


def _failure(reply: Failed, rank: int) -> Failed:
    if reply.broken:
        raise GangError(
            f"rank {rank}: {reply.reason}; its device can no longer be used, and ranks that are not the tuner's own "
            "cannot be started again: leave this config out, or tune with the command"
        )
    return Failed(reply.outcome, f"rank {rank}: {reply.reason}")


def _raise(error: Exception) -> NoReturn:
    raise error


def _nothing() -> Any:
    """What a rank that follows has to say."""
