"""One config's evaluation: its phases in order on all ranks, and their one outcome; what else all ranks measure."""

from __future__ import annotations

import math
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from autotune.config import Config
from autotune.errors import GangError, RanksDisagree
from autotune.heap.patience import polls
from autotune.machine import Machine
from autotune.outcome import DEFAULT_REGIME, Evaluation, HostOverhead, Latency, Outcome, Regime
from autotune.problem import Problem
from autotune.ranks import protocol
from autotune.ranks.early_stop import clearly_slower, in_parts, slowest
from autotune.ranks.protocol import Done, Failed, Request
from autotune.task import Task
from autotune.timeline import Traced
from autotune.workloads import Tolerance, Workload
from autotune.workloads.provenance import Code

SPIN_LIMITS = {"gpu": polls(2.5, interpreted=False), "interpreter": 1 << 14}
"""Polls before a wait inside a kernel times out: after about 2.5 s, and 20 s under the interpreter."""

STAGGER = {"gpu": 2e-3, "interpreter": 0.15}
"""Seconds between the starts of two ranks when results are checked again; at least the time of a call, so that missing
waits show; more on CPUs, which ranks share with others.
"""

LONGEST_STAGGER = {"gpu": 0.5, "interpreter": 5.0}
"""Seconds by which the last rank is late at most: a right kernel's wait for it must not time out."""

PAUSE = {"gpu": 1e-4, "interpreter": 0.02}
"""Seconds by which a rank is late to each call of a burst; at least the time of a call."""

BURSTS, CALLS = {"gpu": 4, "interpreter": 3}, 3
"""Bursts before a result counts, one of each kind (see ``bursts``), and calls back to back in each: the third call is
the first to use a slot for the second time.
"""

PROOF_CALLS = {"gpu": 200, "interpreter": 6}
"""Calls that a winner has to get right before it is stored, and the number of them back to back."""
PROOF_BURST = {"gpu": 8, "interpreter": 2}

RESTART = "restart"
"""A further phase: the time that a failure costs after its deadline."""

QUICK_CALLS = 2
"""Calls of the quick measurement that turns a plan's microseconds into calls."""

WARM_UP = 60e3
"""Microseconds of warm-up for measurements at the clocks that last: clocks and caches are then the config's own."""

MOST_WARM_UP = 400
"""Limit on the calls of a WARM_UP: with the time between two calls, they take a tenth of a second."""

LONG_CALL = 500.0
"""Microseconds of a call from which on power may affect its latency. At the power limit, calls below a millisecond
slowed down by 2 % at most.
"""

MOST_MEASURED = 120
"""Limit on the calls for a plan's ``measured``."""

LONGEST = {"gpu": 3e6, "interpreter": 2e5}
"""Microseconds that the warm-up or measurement of a plan by time may take, FEWEST calls excepted: interpreted calls
take a tenth of a second and more, and more of them would tell nothing.
"""

OVERHEAD_CALLS = 30
"""Isolated calls by which an operator's host overhead is timed."""

FEWEST = 3
"""Calls at least, however long each takes."""


@dataclass(frozen=True)
class MeasurePlan:
    """The iterations of a config: ``screen`` first; the rest only while it is not clearly slower."""

    warmup: int = 2
    screen: int = 5
    iterations: int = 15
    incumbent: tuple[float, ...] = ()
    """Microseconds of the incumbent's iterations; a clearly slower config keeps its latency up to that point."""
    warm_from: float = math.inf
    """Microseconds of a call from which on a WARM_UP precedes every measurement; a quick measurement decides."""
    measured: float = 0.0
    """Microseconds for which to measure at least, if that takes more than ``iterations``."""
    longest: float = LONGEST["gpu"]
    """Microseconds for which to measure at most, if that is FEWEST calls or more."""
    isolated: int = 0
    """Further isolated calls."""
    regime: Regime = DEFAULT_REGIME
    """The regime in which the config is compared with the incumbent."""

    @property
    def by_time(self) -> bool:
        """True if the numbers of calls depend on the time of a call."""
        return self.measured > 0 or math.isfinite(self.warm_from)

    def for_calls_of(self, latency: float) -> MeasurePlan:
        """The plan in numbers of calls, for calls of ``latency`` microseconds."""
        warmup, most = self.warmup, max(FEWEST, int(self.longest / latency))
        if latency >= self.warm_from:
            warmup = max(FEWEST, warmup, min(MOST_WARM_UP, math.ceil(WARM_UP / latency)))
        measured = min(MOST_MEASURED, math.ceil(self.measured / latency))
        iterations = min(max(self.iterations, measured), most)
        screen = iterations if self.screen == self.iterations else min(self.screen, iterations)
        return replace(self, warmup=min(warmup, most), screen=screen, iterations=iterations)


def warm_from(machine: Machine) -> float:
    """A plan's ``warm_from`` on a machine; interpreters do not slow down."""
    return math.inf if machine.is_interpreter else LONG_CALL


def kind_of(machine: Machine) -> str:
    """``gpu`` or ``interpreter``, the key of time limits."""
    return "interpreter" if machine.is_interpreter else "gpu"


class AllRanks(ABC):
    """The ranks of a problem, asked together: how they evaluate a config, and what a report compares it with."""

    workload: Workload
    problem: Problem
    machine: Machine
    warm_call: str
    """``MODULE:FUNCTION`` of the call whose host overhead is timed; empty where there is none."""

    @abstractmethod
    def everyone(self, request: Request, phase: str) -> list[Done] | Failed:
        """Send one request to all ranks in a named phase: their replies, or the one failure that stands for all."""

    def evaluate(self, config: Config, seed: int, plan: MeasurePlan) -> Evaluation:
        """Compile, check, measure, check again; each phase only if the one before went well on every rank."""
        course = _Course(self, config)
        try:
            error = course.prepare(seed)
            found, complete = course.measure(plan)
            latency, times = found.latency(), found.in_regime(plan.regime)
            # What was dropped is not compared again: should it reach the finals, it will be there.
            if complete:
                error = max(error, course.recheck(seed + 1, latency.median, BURSTS[kind_of(self.machine)], CALLS))
        except _Ended as ended:
            return Evaluation(ended.outcome, ended.reason, seconds=course.seconds)
        seconds = {**course.seconds, "total": time.perf_counter() - course.begin}
        return Evaluation(Outcome.MEASURED, latency=latency, error=error, seconds=seconds, times=times)

    def prove(self, config: Config, seed: int, latency: float) -> Evaluation | None:
        """Check a winner of ``latency`` microseconds once more, for far longer; None if every result is right."""
        kind = kind_of(self.machine)
        bursts, calls = BURSTS[kind], PROOF_BURST[kind]

        def recheck(course: _Course) -> None:
            for number in range(-(-PROOF_CALLS[kind] // (bursts * calls))):
                course.recheck(seed + 1 + number, latency, bursts, calls)

        return self._failure_in(config, seed, recheck)

    def keep_batch(self, config: Config, seed: int) -> Evaluation | None:
        """Check a config, and have the ranks keep inputs and results for ``compare_rows``; None if that went well."""
        return self._failure_in(config, seed, lambda course: course.ask(protocol.KeepBatch(), "check"))

    def compare_rows(self, config: Config, seed: int, firsts: tuple[int, ...]) -> Evaluation | None:
        """Check a config in a smaller problem than the batch that was kept; None if rows of that, from each of
        ``firsts`` on, have the same bits in both.
        """
        return self._failure_in(config, seed, lambda course: course.ask(protocol.CompareRows(firsts), "check"))

    def _failure_in(self, config: Config, seed: int, checks: Callable[[_Course], object]) -> Evaluation | None:
        course = _Course(self, config)
        try:
            course.prepare(seed)
            checks(course)
        except _Ended as ended:
            return Evaluation(ended.outcome, ended.reason, seconds=course.seconds)
        return None

    def measure_parts(self, plan: MeasurePlan) -> dict[str, Latency]:
        """Latencies of the operation's parts alone, each measured by the plan; empty on a failure."""
        quick = self.everyone(protocol.MeasureParts(1, QUICK_CALLS), "measure")
        if isinstance(quick, Failed):
            return {}
        found = {}
        for name in quick[0].parts:
            own = plan.for_calls_of(statistics.median(slowest([answer.parts[name] for answer in quick])))
            answers = self.everyone(protocol.MeasureParts(own.warmup, own.iterations, name), "measure")
            if isinstance(answers, Failed):
                return {}
            found[name] = _combine([answer.parts[name] for answer in answers])
        return found

    def measure_overhead(self) -> HostOverhead | None:
        """An operator's host overhead on the slowest rank, see ``MeasureOverhead``; None where there is none."""
        if not self.warm_call:
            return None
        answers = self.everyone(protocol.MeasureOverhead(self.warm_call, OVERHEAD_CALLS), "measure")
        if isinstance(answers, Failed) or not answers[0].times:
            return None
        host, isolated = (
            max(0.0, *(statistics.median(times) for times in by_rank))
            for by_rank in ([answer.host for answer in answers], [answer.times for answer in answers])
        )
        return HostOverhead(host, isolated)

    def trace(self, config: Config, latency: float) -> Traced | Failed:
        """See ``Evaluator``."""
        return Failed(Outcome.INVALID, "ranks of a running program are not traced")

    def measure_rates(self, dtype: str) -> dict[str, float]:
        """Rates of the slowest rank's device and links per microsecond, by resource; empty on a failure."""
        answers = self.everyone(protocol.MeasureRates(dtype), "measure")
        if isinstance(answers, Failed):
            return {}
        return {name: min(answer.rates[name] for answer in answers) for name in answers[0].rates}


class _Ended(Exception):
    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome, self.reason = outcome, reason


class _Course:
    """One evaluation's requests, and the time per phase so far."""

    def __init__(self, ranks: AllRanks, config: Config) -> None:
        self._ranks, self._config, self._world_size = ranks, config, ranks.problem.world_size
        self._tolerance = ranks.workload.tolerance_of(Task(ranks.problem, ranks.machine), config)
        self._kind = kind_of(ranks.machine)
        self.begin = time.perf_counter()
        self.seconds: dict[str, float] = {}

    def ask(self, request: Request, phase: str) -> list[Done]:
        """Send a request; the ranks' replies. Raises _Ended."""
        asked = time.perf_counter()
        result = self._ranks.everyone(request, phase)
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - asked
        if isinstance(result, Failed):
            if result.restart:
                self.seconds[phase] -= result.restart
                self.seconds[RESTART] = result.restart
            raise _Ended(result.outcome, result.reason)
        return result

    def prepare(self, seed: int) -> float:
        """Compile the config, prepare it on the ranks, compare a first result; the largest error over the ranks."""
        self.ask(protocol.Compile(self._config), "compile")
        return self._compare(self.ask(protocol.Check(self._config, seed), "check"))

    def recheck(self, seed: int, latency: float, bursts: int, calls: int) -> float:
        """The largest error over the ranks, in calls back to back, each on other inputs."""
        most = LONGEST_STAGGER[self._kind] / self._world_size
        stagger, pause = (min(max(least[self._kind], latency * 1e-6), most) for least in (STAGGER, PAUSE))
        answers = self.ask(protocol.Recheck(seed, stagger, pause, bursts, calls), "check")
        return self._compare(answers, "calls back to back, inputs changing, ranks apart: ")

    def _compare(self, answers: Sequence[Done], when: str = "") -> float:
        """The largest error over the ranks; raises _Ended if it is too large."""
        wrong = _wrong(answers, self._tolerance)
        if wrong is not None:
            raise _Ended(Outcome.WRONG_RESULT, when + wrong)
        return max(answer.overall for answer in answers)

    def measure(self, plan: MeasurePlan) -> tuple[_Measured, bool]:
        """The ranks' times, and True if complete: clearly slower configs are cut short."""
        if plan.by_time:
            quick = self.ask(protocol.Measure(1, QUICK_CALLS), "measure")
            plan = plan.for_calls_of(statistics.median(slowest([answer.times for answer in quick])))
        found = _Measured(self._world_size)
        parts = in_parts(plan.screen, plan.iterations)
        for i, count in enumerate(parts):
            if clearly_slower(found.in_regime(plan.regime), plan.incumbent, looks=len(parts) - 1):
                return found, False
            found.add(self.ask(protocol.Measure(0 if i else plan.warmup, count), "measure"))
            if alone := min(count, plan.isolated):
                found.add_isolated(self.ask(protocol.MeasureIsolated(alone), "measure"))
        return found, True


class _Measured:
    def __init__(self, world_size: int) -> None:
        self.device: list[list[float]] = [[] for _ in range(world_size)]
        self.host: list[list[float]] = [[] for _ in range(world_size)]
        self.isolated: list[list[float]] = [[] for _ in range(world_size)]

    def add(self, answers: Sequence[Done]) -> None:
        for rank, answer in enumerate(answers):
            self.device[rank].extend(answer.times)
            self.host[rank].extend(answer.host)

    def add_isolated(self, answers: Sequence[Done]) -> None:
        for rank, answer in enumerate(answers):
            self.isolated[rank].extend(answer.times)

    def latency(self) -> Latency:
        return _combine(self.device, self.host, self.isolated)

    def in_regime(self, regime: Regime) -> tuple[float, ...]:
        """The slowest rank's time per iteration in a regime."""
        times = slowest(self.device)
        if regime is Regime.ISOLATED and self.isolated[0]:
            return slowest(self.isolated)
        if regime is Regime.PIPELINED and self.host[0]:
            host = max(statistics.median(mine) for mine in self.host)
            return tuple(max(time, host) for time in times)
        return times


def check_same_work(answers: Sequence[Done]) -> None:
    """Raise RanksDisagree unless all ranks work on the same problem and config."""
    if len({answer.fingerprint for answer in answers}) != 1:
        raise RanksDisagree("; ".join(f"rank {i}: {answer.fingerprint}" for i, answer in enumerate(answers)))


def check_code(workload: Workload, answers: Sequence[Done]) -> None:
    """Raise GangError unless all ranks run the code of this process, under which it stores results."""
    ours = Code.here(workload)
    for rank, done in enumerate(answers):
        difference = ours.difference(done.code) if done.code is not None else "it did not report its code"
        if difference is not None:
            raise GangError(
                f"rank {rank} runs other code than this process, whose sources are the key of results: "
                f"{difference}. If files changed meanwhile, start again; otherwise let both import the same package"
            )


def _wrong(answers: Sequence[Done], tolerance: Tolerance) -> str | None:
    for rank, answer in enumerate(answers):
        # Written so that NaN is wrong.
        if not (answer.overall <= tolerance.overall and answer.element <= tolerance.element):
            unwritten = math.isnan(answer.overall) or math.isnan(answer.element)
            return (
                f"rank {rank}: error {answer.overall:.2e} (allowed {tolerance.overall:.1e}), "
                f"worst element {answer.element:.2e} (allowed {tolerance.element:.1e})"
                + ("; outputs hold NaN before a call: perhaps not all was written" if unwritten else "")
            )
    return None


def _combine(
    times: Sequence[Sequence[float]], host: Sequence[Sequence[float]] = (), isolated: Sequence[Sequence[float]] = ()
) -> Latency:
    from autotune.ranks.measure import combine

    return combine(times, host, isolated)
