"""One config for all sizes of a batch: its time is the sum over sizes, and its rows have the same bits in each."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import Protocol, runtime_checkable

from autotune.config import Config
from autotune.errors import InputError
from autotune.machine import Machine
from autotune.outcome import Evaluation, HostOverhead, Latency, Outcome, Regime
from autotune.problem import Problem
from autotune.ranks.evaluation import MeasurePlan, kind_of
from autotune.ranks.protocol import Failed
from autotune.task import Task
from autotune.timeline import Traced
from autotune.tuning.evaluator import Evaluator
from autotune.tuning.routings import turn_to
from autotune.workloads import Workload

COMPARED = {"gpu": 6, "interpreter": 3}
"""Sizes on which rows are compared, beside the smallest."""

HOPELESS = 1.5
"""A config that takes so many times as long as the fastest is not timed at the sizes that are left."""


def compared_with(problem: Problem, seed: int, count: int) -> Iterator[tuple[Problem, tuple[int, ...]]]:
    """The smallest size and others drawn from the range, the same for a seed, each with the first rows of its parts of
    the whole batch: a prefix, and a part at a place that is drawn, too.
    """
    chance, unit, most = random.Random(seed), problem.least_rows, problem.batch_rows
    drawn = {int(math.exp(chance.uniform(math.log(unit), math.log(most)))) // unit * unit for _ in range(count)}
    for rows in sorted({unit, *drawn} - {most}):
        yield problem.with_rows(rows), (0, chance.randint(1, most - rows))


def baselines(workload: Workload, task: Task[Problem]) -> dict[str, Config]:
    """The workload's; of an invariant problem also those whose bits vary, which it is compared with and never wins."""
    return workload.baselines(Task(task.problem.as_varying(), task.machine))


@runtime_checkable
class Ranks(Evaluator, Protocol):
    """An evaluator whose ranks keep a batch, and compare rows of smaller ones with it; see ``AllRanks``."""

    def keep_batch(self, config: Config, seed: int) -> Evaluation | None: ...

    def compare_rows(self, config: Config, seed: int, firsts: tuple[int, ...]) -> Evaluation | None: ...


def over_sizes(gang: Evaluator, workload: Workload, task: Task[Problem]) -> Evaluator:
    """The evaluator itself, of an invariant problem over all its sizes. Raises InputError for one without ranks."""
    if not task.problem.is_invariant:
        return gang
    if not isinstance(gang, Ranks):
        raise InputError("an invariant problem is tuned on ranks: a recording has one size alone")
    return OverSizes(gang, workload, task.problem, task.machine)


class OverSizes:
    """An evaluator that adds up what another one measures of an invariant problem's sizes. The ranks turn from one to
    the next as they do in a grid.
    """

    def __init__(self, gang: Ranks, workload: Workload, problem: Problem, machine: Machine) -> None:
        """``gang`` has the largest size."""
        self._gang, self._kind = gang, kind_of(machine)
        self._set(workload, problem)

    def _set(self, workload: Workload, problem: Problem) -> None:
        self._workload, self._problem, self._sizes = workload, problem, problem.sizes()
        self._at = problem

    @property
    def restarts(self) -> int:
        return self._gang.restarts

    def start(self) -> None:
        self._gang.start()

    def turn_to(self, workload: Workload, problem: Problem) -> None:
        self._set(workload, problem)
        self._gang.turn_to(workload, problem)

    def close(self) -> None:
        self._gang.close()

    def evaluate(self, config: Config, seed: int, plan: MeasurePlan) -> Evaluation:
        """Evaluate a config at every size: the sum of the latencies, the largest error; or the first failure."""
        limit = HOPELESS * sum(plan.incumbent) / len(plan.incumbent) if plan.incumbent else math.inf
        found: list[Evaluation] = []
        alone = replace(plan, incumbent=())
        for problem in self._sizes:
            rows = self._turn(problem)
            evaluation = self._gang.evaluate(config, seed, alone)
            if evaluation.latency is None:
                found = [replace(evaluation, reason=f"{rows}: {evaluation.reason}")]
                break
            found.append(evaluation)
            if sum(each.latency.of(plan.regime) for each in found if each.latency is not None) > limit:
                break
        return reduce(_added, found)

    def prove(self, config: Config, seed: int, latency: float) -> Evaluation | None:
        """See ``Evaluator``; then rows of smaller batches are compared with those of the largest, bit by bit."""
        self._turn(self._problem)
        failed = self._gang.prove(config, seed, latency) or self._gang.keep_batch(config, seed)
        for problem, firsts in compared_with(self._problem, seed, COMPARED[self._kind]):
            if failed is not None:
                break
            rows = self._turn(problem)
            failed = self._gang.compare_rows(config, seed, firsts)
            failed = failed and replace(failed, reason=f"{rows}: {failed.reason}")
        return failed

    def measure_parts(self, plan: MeasurePlan) -> dict[str, Latency]:
        """The sum over the sizes of each part alone; empty if one could not be measured."""
        of_sizes = []
        for problem in self._sizes:
            self._turn(problem)
            of_sizes.append(self._gang.measure_parts(plan))
        names = [name for name in of_sizes[0] if all(name in each for each in of_sizes)]
        return {name: summed([each[name] for each in of_sizes]) for name in names}

    def measure_overhead(self) -> HostOverhead | None:
        """The sum for a call at each size; where the device takes longer the host's share is counted all the same."""
        self._turn(self._problem)
        each, calls = self._gang.measure_overhead(), len(self._sizes)
        return None if each is None else HostOverhead(calls * each.host, calls * each.isolated)

    def trace(self, config: Config, latency: float) -> Traced | Failed:
        return Failed(Outcome.INVALID, "a sum over sizes is not one call")

    def measure_rates(self, dtype: str) -> dict[str, float]:
        """None: a roofline is one problem's."""
        return {}

    def _turn(self, problem: Problem) -> str:
        """Have the ranks set a size up, unless they have it; the size in words."""
        if problem != self._at:
            turn_to(self._gang, self._workload, problem)
            self._at = problem
        return f"{problem.one_row}={problem.batch_rows}"


def summed(latencies: Sequence[Latency]) -> Latency:
    """The latency of one call at each size, one after the other."""
    total = reduce(_plus, latencies)
    return replace(total, rounds=(), host_rounds=(), isolated_rounds=())


def _plus(one: Latency, other: Latency) -> Latency:
    pipelined = [each.of(Regime.PIPELINED) for each in (one, other)]
    isolated = [each.isolated for each in (one, other)]
    return Latency(
        one.median + other.median,
        one.low + other.low,
        one.high + other.high,
        one.skew + other.skew,
        min(one.iterations, other.iterations),
        tuple(map(sum, zip(one.by_rank, other.by_rank, strict=True))),
        # Of each size the longer of device and host: that is what counts where calls are pipelined.
        None if one.host is None or other.host is None else sum(pipelined),
        None if None in isolated else sum(each for each in isolated if each is not None),
    )


def _added(one: Evaluation, other: Evaluation) -> Evaluation:
    assert one.latency is not None and other.latency is not None
    phases = {**one.seconds, **other.seconds}
    return Evaluation(
        Outcome.MEASURED,
        latency=_plus(one.latency, other.latency),
        error=max(one.error or 0.0, other.error or 0.0),
        seconds={name: one.seconds.get(name, 0.0) + other.seconds.get(name, 0.0) for name in phases},
        times=tuple(map(sum, zip(one.times, other.times, strict=False))),
    )
