"""The gain from tuning: the time of each problem in a forward by rooflines, and what overlap could save of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from autotune.device_rates import Rates, usual_rates
from autotune.dtypes import FP8
from autotune.machine import Machine
from autotune.models.forward import Forward, Place, Way, Work, places, repeated
from autotune.problem import Problem
from autotune.task import Task
from autotune.tuning.effort import LONGEST, SHORTEST

PLENTY = 5.0
"""Seconds for each problem where no budget is given."""

BESIDE = 1.5
"""Seconds beside a search and its finals: baselines, proof, traced calls."""


@dataclass(frozen=True)
class Estimate:
    """Microseconds of one call by rooflines."""

    before: float
    """The collective and the GEMM one after the other."""
    limit: float
    """The longer of the two alone."""
    moving: float
    """Time of the collective alone."""

    @property
    def gain(self) -> float:
        return self.before - self.limit


def estimate(task: Task[Problem]) -> Estimate:
    rates = usual_rates(task.machine)
    flops, read, moved = (float(getattr(task.problem, name, 0)) for name in ("flops", "bytes_read", "bytes_moved"))
    computing = _alone(Work(flops, read, task.problem.dtype), rates) + rates.launch
    moving = moved / rates.links + rates.signal + rates.launch
    return Estimate(computing + moving, max(computing, moving), moving)


def starting(task: Task[Problem]) -> float:
    """The share of the collective's time that it takes whatever its bytes, by rooflines."""
    rates = usual_rates(task.machine)
    return (rates.signal + rates.launch) / estimate(task).moving


def estimated(place: Place, machine: Machine) -> Estimate:
    """Microseconds of a place: before by its largest way, at the limit by the one that could save most."""
    ways = [_of_way(way, repeated(way, place), machine) for way in place]
    before, best = max(each.before for each in ways), max(ways, key=lambda each: each.gain)
    return Estimate(before, before - best.gain, best.moving)


def _of_way(way: Way, repeated: int, machine: Machine) -> Estimate:
    """``repeated``: calls that share their gather with another one, where the library gathers once."""
    each = [(call.count, estimate(Task(call.problem, machine))) for call in way]
    before, limit, moving = (
        sum(count * getattr(one, name) for count, one in each) for name in ("before", "limit", "moving")
    )
    return Estimate(before - repeated * min(one.moving for _, one in each), limit, moving)


def rest(forward: Forward, rates: Rates) -> float:
    """Microseconds of what communicates nothing."""
    return sum(_alone(work, rates) for work in forward.rest)


def _alone(work: Work, rates: Rates) -> float:
    rate = rates.flops * (2 if work.dtype in FP8 else 1)
    return max(work.flops / rate, work.bytes_read / rates.memory) + work.launches * rates.launch


def expected_gains(forwards: Sequence[Forward], machine: Machine) -> dict[Problem, float]:
    """Share of a forward's time that overlap could save per problem, summed over the forwards."""
    found: dict[Problem, float] = {}
    rates = usual_rates(machine)
    for forward in forwards:
        whole = rest(forward, rates) + sum(estimated(place, machine).before for place in places(forward.calls))
        for call in forward.calls:
            gain = call.count * estimate(Task(call.problem, machine)).gain / whole
            found[call.problem] = found.get(call.problem, 0.0) + gain
    return found


def shares(gains: Mapping[Problem, float], problems: Collection[Problem], seconds: float) -> dict[Problem, float]:
    """``SHORTEST`` seconds for each problem, the most promising first, as far as they last; what is then left goes to
    all these in proportion to their gains. The most promising one always gets its share.
    """
    chosen = sorted(problems, key=lambda problem: gains[problem], reverse=True)
    chosen = chosen[: max(1, int(seconds / (SHORTEST + BESIDE)))]
    whole = sum(gains[problem] for problem in chosen)
    spare = max(0.0, seconds - len(chosen) * (SHORTEST + BESIDE))
    return {each: min(LONGEST, SHORTEST + gains[each] / whole * spare) for each in chosen}
