"""A stopwatch that shares nothing with the tuner's: wall clock, ranks that start together, paired rounds."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

Call = Callable[[int], object]
"""Makes the call with this number; the number chooses the weights."""

STUDENT_95 = (
    12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09,
)  # fmt: skip
"""Two-sided quantiles of Student's t at 95 % for 1, 2, … degrees of freedom; beyond the last, the last is used."""

LEAD = 500_000
"""Nanoseconds between the last rank's arrival and the common start: the others have to learn of it by then."""


@dataclass(frozen=True)
class Plan:
    """The length and number of measurements."""

    rounds: int = 6
    """Rounds, at least two. Each measures every way twice, forwards and backwards: ours, theirs, theirs, ours."""
    seconds: float = 0.1
    """Length of one sample."""
    warm_up: float = 0.3
    """Seconds that each way runs before the first round, so that the GPUs' clocks are those that they can keep."""
    isolated_calls: int = 30
    """Calls of one sample, where each starts from an idle GPU."""


TOY = Plan(rounds=2, seconds=0.0, warm_up=0.0, isolated_calls=1)


@dataclass(frozen=True)
class Ratio:
    """One way's time over another's, with the half width of its 95 % confidence interval."""

    value: float
    error: float

    @classmethod
    def of_rounds(cls, numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
        """Ratio of two ways' times, paired by round; at least two rounds."""
        logs = [math.log(one / other) for one, other in zip(numerators, denominators, strict=True)]
        value = math.exp(statistics.fmean(logs))
        student = STUDENT_95[min(len(logs) - 2, len(STUDENT_95) - 1)]
        return cls(value, value * math.expm1(student * statistics.stdev(logs) / math.sqrt(len(logs))))

    def __str__(self) -> str:
        return f"{self.value:.3f} ± {self.error:.3f}"


class Clock:
    """Times are microseconds of a call on the slowest rank, from a start that all ranks of this host share."""

    def __init__(self, device: torch.device, group: dist.ProcessGroup, plan: Plan) -> None:
        """``group`` is a CPU (gloo) group over all ranks."""
        self._on_gpu, self._group, self._plan = device.type == "cuda", group, plan

    def busy(self, ways: Mapping[str, Call], sets: int, per_call: int = 1) -> dict[str, list[float]]:
        """Each way's time in every round, many calls one after the other without waiting between them.

        The calls go through ``sets`` weights in turn; one call of a way counts as ``per_call``.
        """
        counts = {name: self._count(call, sets) for name, call in ways.items()}
        warm_up = self._plan.warm_up / self._plan.seconds if self._plan.seconds else 0
        for name, call in ways.items():
            self._burst(call, max(1, round(counts[name] * warm_up)))
        return self._in_turns(ways, lambda name: self._burst(ways[name], counts[name]) / per_call)

    def isolated(self, ways: Mapping[str, Call]) -> dict[str, list[float]]:
        """Each way's time in every round: the median of single calls, each from an idle GPU."""
        for call in ways.values():
            self._single(call)
        return self._in_turns(ways, lambda name: self._single(ways[name]))

    def _in_turns(self, ways: Mapping[str, Call], sample: Callable[[str], float]) -> dict[str, list[float]]:
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(self._plan.rounds):
            forth = {name: sample(name) for name in ways}
            back = {name: sample(name) for name in reversed([*ways])}
            for name, found in times.items():
                found.append(math.sqrt(forth[name] * back[name]))
        return times

    def _count(self, call: Call, sets: int) -> int:
        """Calls of one sample, the same on every rank and a multiple of ``sets``."""
        once = self._burst(call, sets)
        return sets * max(1, math.ceil(self._plan.seconds * 1e6 / (once * sets)))

    def _burst(self, call: Call, count: int) -> float:
        begin = self._start_together()
        for number in range(count):
            call(number)
        self._settle()
        return self._slowest([time.monotonic_ns() - begin])[0] / count / 1e3

    def _single(self, call: Call) -> float:
        took = []
        for number in range(self._plan.isolated_calls):
            begin = self._start_together()
            call(number)
            self._settle()
            took.append(time.monotonic_ns() - begin)
        return statistics.median(self._slowest(took)) / 1e3

    def _start_together(self) -> int:
        """Wait for an idle device and for every rank; returns the start, on the monotonic clock that they share."""
        self._settle()
        start = int(self._slowest([time.monotonic_ns() + LEAD])[0])
        while time.monotonic_ns() < start:
            pass
        return start

    def _slowest(self, nanoseconds: list[int]) -> list[float]:
        values = torch.tensor(nanoseconds, dtype=torch.int64)
        dist.all_reduce(values, dist.ReduceOp.MAX, group=self._group)
        return [float(value) for value in values.tolist()]

    def _settle(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize()


@contextmanager
def captured(way: Call, sets: int) -> Iterator[tuple[Callable[[int], object], list[Any]]]:
    """A replay of calls with every set, and the tensors that hold its results; the graph is gone afterwards.

    A graph that holds a call of NCCL has to go before its process group.
    """
    for number in range(sets):
        way(number)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [way(number) for number in range(sets)]
    try:
        yield lambda _: graph.replay(), results
    finally:
        torch.cuda.synchronize()
        graph.reset()
