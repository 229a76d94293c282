"""One config's evaluation: its phases one after the other on all ranks, and the one outcome that they come to."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotune.config import Config
from autotune.environment import Machine
from autotune.errors import RanksDisagree
from autotune.outcome import Evaluation, Latency, Outcome
from autotune.problem import Problem
from autotune.ranks.early_stop import clearly_slower, in_parts, slowest
from autotune.ranks.protocol import Check, Compile, Done, Failed, Measure, MeasureParts, Recheck, Request
from autotune.workloads import Workload

STAGGER = {"gpu": 2e-3, "interpreter": 5e-2}
"""Seconds by which each rank starts after the one before it when a result is checked again."""

RECHECK_RUNS = 3
"""Calls back to back, with nothing between them that would line the ranks up, before a result is checked again."""

Everyone = Callable[[Request, str], list[Done] | Failed]
"""Puts one request to all ranks, for a named phase: what each of them did, or the one failure that stands for all."""


@dataclass(frozen=True)
class MeasurePlan:
    """How often a config is run. ``screen`` iterations first; the rest only while it is not clearly slower."""

    warmup: int = 2
    screen: int = 5
    iterations: int = 15
    incumbent: tuple[float, ...] = ()
    """Microseconds of the incumbent's iterations: a config that is clearly slower keeps the latency it has by then."""


def kind_of(machine: Machine) -> str:
    """``gpu`` or ``interpreter``: what time limits go by."""
    return "interpreter" if machine.is_interpreter else "gpu"


def evaluate(
    everyone: Everyone, workload: Workload, problem: Problem, machine: Machine, config: Config, seed: int,
    plan: MeasurePlan,
) -> Evaluation:  # fmt: skip
    """Compile, check, measure, check again; each phase only if the one before went well on every rank."""
    seconds: dict[str, float] = {}
    begin = time.perf_counter()

    def timed(request: Request, phase: str) -> list[Done] | Evaluation:
        asked = time.perf_counter()
        result = everyone(request, phase)
        seconds[phase] = seconds.get(phase, 0.0) + time.perf_counter() - asked
        if isinstance(result, Failed):
            return Evaluation(result.outcome, result.reason, seconds=seconds)
        return result

    overall = 0.0
    times: list[list[float]] = [[] for _ in range(problem.world_size)]
    parts = in_parts(plan.screen, plan.iterations)
    requests: list[tuple[Request, str]] = [(Compile(config), "compile"), (Check(config, seed), "check")]
    requests += [(Measure(0 if i else plan.warmup, count), "measure") for i, count in enumerate(parts)]
    requests.append((Recheck(seed + 1, STAGGER[kind_of(machine)], RECHECK_RUNS), "check"))
    dropped = False
    for request, phase in requests:
        if isinstance(request, Measure):
            dropped = dropped or clearly_slower(slowest(times), plan.incumbent, looks=len(parts) - 1)
        if dropped:
            continue  # nor is its result compared again: should it reach the finals, it will be there
        answers = timed(request, phase)
        if isinstance(answers, Evaluation):
            return answers
        if isinstance(request, (Check, Recheck)):
            wrong = _wrong(answers, workload, problem)
            if wrong is not None:
                when = "" if isinstance(request, Check) else "after timing, ranks arriving one by one: "
                return Evaluation(Outcome.WRONG_RESULT, when + wrong, seconds=seconds)
            overall = max(overall, *(answer.overall for answer in answers))
        for rank, answer in enumerate(answers):
            times[rank].extend(answer.times)
    seconds["total"] = time.perf_counter() - begin
    latency = _combine(times)
    return Evaluation(Outcome.MEASURED, latency=latency, error=overall, seconds=seconds, times=slowest(times))


def measure_parts(everyone: Everyone, warmup: int, iterations: int) -> dict[str, Latency]:
    """The operation's parts alone; empty where that failed."""
    answers = everyone(MeasureParts(warmup, iterations), "measure")
    if isinstance(answers, Failed):
        return {}
    return {name: _combine([list(answer.parts[name]) for answer in answers]) for name in answers[0].parts}


def check_same_work(answers: Sequence[Done]) -> None:
    """Raise RanksDisagree where the ranks do not all work on the same."""
    if len({answer.fingerprint for answer in answers}) != 1:
        raise RanksDisagree("; ".join(f"rank {i}: {answer.fingerprint}" for i, answer in enumerate(answers)))


def _wrong(answers: Sequence[Done], workload: Workload, problem: Problem) -> str | None:
    tolerance = workload.tolerance(problem)
    for rank, answer in enumerate(answers):
        # Written so that NaN is wrong.
        if not (answer.overall <= tolerance.overall and answer.element <= tolerance.element):
            return (
                f"rank {rank}: error {answer.overall:.2e} (allowed {tolerance.overall:.0e}), "
                f"worst element {answer.element:.2e} (allowed {tolerance.element:.0e})"
            )
    return None


def _combine(times: Sequence[Sequence[float]]) -> Latency:
    from autotune.ranks.measure import combine

    return combine(times)
