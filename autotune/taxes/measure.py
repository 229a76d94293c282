"""The protocol: every rung checked once, then all of them in turns; then doses of launches and of lateness."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from autotune.config import Config
from autotune.errors import AutotuneError
from autotune.machine import Machine
from autotune.outcome import Evaluation
from autotune.problem import Problem
from autotune.ranks.early_stop import slowest
from autotune.ranks.evaluation import MeasurePlan, kind_of, warm_from
from autotune.ranks.gang import Gang
from autotune.ranks.protocol import Done, Failed, MeasureBarrier, Turn
from autotune.task import Task
from autotune.taxes.result import Doses, Taxes
from autotune.timeline import Traced
from autotune.tuning.invariant import baselines
from autotune.workloads import Workload

ROUNDS = {"gpu": 40, "interpreter": 3}
DOSE_ROUNDS = {"gpu": 10, "interpreter": 2}
CALLS = {"gpu": 10, "interpreter": 1}
"""Timed calls in a turn; its time is their median."""
WARM_UP = {"gpu": 4, "interpreter": 0}
"""Calls before: the first two are made directly, the third is captured."""
WARMED = {"gpu": 5.0, "interpreter": 0.0}
"""Seconds of turns that do not count, until the GPUs are as warm as they will be."""

LAUNCHES = (0, 2, 4, 8)
"""Empty launches between the phases."""
DOSED = ("E1", "G", "B")
"""Rungs whose phases are launches."""

LATE = {"gpu": (0.0, 10.0, 20.0, 50.0), "interpreter": (0.0, 20e3, 50e3)}
"""Microseconds by which one rank is late; an interpreted call takes tens of milliseconds."""
TRACED = ("D",)
"""Rungs of which one call is traced, on request."""
DELAYED = ("E1", "B", "D", "F")

FEWEST_ROUNDS = 2

T = TypeVar("T")


@dataclass(frozen=True)
class Amount:
    """Numbers of rounds and calls, and the doses."""

    rounds: int
    dose_rounds: int
    calls: int
    warmup: int
    warmed: float
    late: tuple[float, ...]

    @classmethod
    def on(cls, machine: Machine, rounds: int | None = None) -> Amount:
        """The protocol's on a machine, or with another number of rounds."""
        kind = kind_of(machine)
        count = rounds if rounds is not None else ROUNDS[kind]
        return cls(count, min(count, DOSE_ROUNDS[kind]), CALLS[kind], WARM_UP[kind], WARMED[kind], LATE[kind])


@dataclass(frozen=True)
class Base:
    """The config whose tile the ladder has, and why it is this one."""

    config: Config
    origin: str


def choose_base(
    workload: Workload, task: Task[Problem], winner: Config, trials: Sequence[tuple[Config, float]]
) -> Base:
    """The winner if its mode overlaps; else the fastest such config that its study measured; else an
    untuned one.

    ``trials`` are configs and their latencies.
    """
    if not workload.overlapping or winner.get("mode") in workload.overlapping:
        return Base(winner, "the winner")
    others = [(latency, config) for config, latency in trials if config["mode"] in workload.overlapping]
    if others:
        _, fastest = min(others, key=lambda pair: pair[0])
        return Base(fastest, f"the study's fastest {fastest['mode']}, for the winner is {winner['mode']}")
    untuned = workload.first_configs(task)
    first = next((each for each in untuned if each["mode"] in workload.overlapping), untuned[0])
    return Base(first, f"an untuned {first['mode']}, for the winner is {winner['mode']}")


def ladder_of(
    workload: Workload, task: Task[Problem], base: Config, winner: Config
) -> tuple[dict[str, Config], dict[str, str]]:
    """The rungs that can be measured, by letter, and why the others cannot. L is no config."""
    found: dict[str, Config] = {}
    missing: dict[str, str] = {}
    of_library = baselines(workload, task)
    for letter, name in (("E0", "bsp eager"), ("E1", "bsp eager"), ("G", "bsp graph")):
        if letter == "E0" and task.machine.is_interpreter:
            missing[letter] = "an interpreted call is not enqueued: there is one time, E1"
        elif name in of_library:
            found[letter] = of_library[name]
        else:
            missing[letter] = f"the workload names no baseline {name!r} here"
    rungs: Mapping[str, Config | str] = dict.fromkeys("BDF", "the workload names no rungs of its own")
    if workload.overlapping:
        rungs = workload.rungs(task, base)
    for letter, rung in rungs.items():
        reason = rung if isinstance(rung, str) else _invalid(workload, task, rung)
        if isinstance(rung, Config) and reason is None:
            found[letter] = rung
        else:
            missing[letter] = str(reason)
    if winner not in found.values():
        found["W"] = winner
    return found, missing


def _invalid(workload: Workload, task: Task[Problem], rung: Config) -> str | None:
    """The space's reason to refuse a rung, apart from the knobs that no space has."""
    dimensions = workload.space.dimensions_of(str(rung["mode"]))
    return workload.space.violation(Config({d.name: rung[d.name] for d in dimensions}), task)


@dataclass
class Course:
    """The measurement as it goes: turns of rungs that are left, and their times so far."""

    ranks: Gang
    machine: Machine
    amount: Amount
    watch: Callable[[str, int, int], None]
    missing: dict[str, str]
    plans: dict[str, MeasurePlan] = field(default_factory=dict)
    configs: dict[str, Config] = field(default_factory=dict)

    def check(self, rungs: Mapping[str, Config]) -> None:
        """Evaluate each config once, as the tuner does; one that fails is no rung."""
        calls, results = self.amount.calls, dict[Config, Evaluation]()
        plan = MeasurePlan(self.amount.warmup, calls, calls, warm_from=warm_from(self.machine))
        for number, (letter, config) in enumerate(rungs.items()):
            self.watch("checking", number, len(rungs))
            if config not in results:
                results[config] = self.ranks.evaluate(config, number, plan)
            found = results[config]
            if found.latency is None:
                self.missing[letter] = f"{found.outcome.value}: {found.reason}"
                continue
            self.configs[letter], self.plans[letter] = config, plan.for_calls_of(found.latency.median)

    def turn(self, letter: str, config: Config | None = None, late: float = 0.0, late_rank: int = 0) -> list[Done]:
        """One turn of a rung, or of a config like it."""
        plan = self.plans[letter]
        answer = self.ranks.turn(
            Turn(config or self.configs[letter], plan.warmup, plan.iterations, letter == "E0", late_rank, late * 1e-6)
        )
        if isinstance(answer, Failed):
            raise AutotuneError(
                f"rung {letter} was right when it was checked, and failed in a later turn: {answer.outcome.value}: "
                f"{answer.reason}"
            )
        return answer

    def warm(self) -> None:
        """Run turns that do not count."""
        end = time.monotonic() + self.amount.warmed
        while time.monotonic() < end:
            for letter in self.configs:
                self.turn(letter)

    def rounds(self) -> tuple[dict[str, list[float]], dict[str, list[float]], dict[str, list[float]]]:
        """Times and clocks of all rungs, and times of the parts alone, in turns whose order rotates."""
        times: dict[str, list[float]] = {letter: [] for letter in self.configs}
        clocks: dict[str, list[float]] = {letter: [] for letter in self.configs}
        parts: dict[str, list[float]] = {}
        plan = max(self.plans.values(), key=lambda each: each.warmup)
        for number in range(self.amount.rounds):
            self.watch("ladder", number, self.amount.rounds)
            for letter in rotated([*self.configs, "L"], number):
                if letter == "L":
                    for name, latency in self.ranks.measure_parts(plan).items():
                        parts.setdefault(name, []).append(latency.median)
                    continue
                answers = self.turn(letter)
                times[letter].append(typical(answers))
                clocks[letter].append(min(answer.clock for answer in answers))
        return times, clocks, parts

    def doses(self, letters: Sequence[str], doses: Sequence[float], name: str, give: Dose) -> dict[str, Doses]:
        """Times of each rung at each dose, the doses in turns whose order rotates."""
        found: dict[str, dict[float, list[float]]] = {}
        for letter in letters:
            if letter not in self.configs:
                continue
            found[letter] = {dose: [] for dose in doses}
            for number in range(self.amount.dose_rounds):
                self.watch(f"{name}, {letter}", number, self.amount.dose_rounds)
                for dose in rotated(list(doses), number):
                    found[letter][dose].append(typical(give(letter, dose)))
        return {letter: {dose: tuple(each) for dose, each in by_dose.items()} for letter, by_dose in found.items()}

    def traced(self, letter: str) -> Traced | None:
        """One call of a rung's twin on all ranks; None, and why, where the twin is not right."""
        self.watch("tracing", 0, 1)
        twin = self.configs[letter].replace(trace=True)
        plan = MeasurePlan(self.amount.warmup, self.amount.calls, self.amount.calls)
        found = self.ranks.evaluate(twin, 0, plan)
        if found.latency is None:
            self.missing[f"{letter} traced"] = f"{found.outcome.value}: {found.reason}"
            return None
        traced = self.ranks.trace(self.configs[letter], found.latency.median)
        if isinstance(traced, Failed):
            self.missing[f"{letter} traced"] = f"{traced.outcome.value}: {traced.reason}"
            return None
        return traced

    def barrier(self) -> tuple[float, ...]:
        """A barrier of all ranks less an empty launch, round by round; empty if it cannot be measured."""
        found = []
        for number in range(self.amount.dose_rounds):
            self.watch("barrier", number, self.amount.dose_rounds)
            answers = self.ranks.turn(MeasureBarrier(self.amount.warmup, max(3, self.amount.calls)))
            if isinstance(answers, Failed):
                return ()
            barrier, empty = (
                statistics.median(slowest([answer.parts[name] for answer in answers])) for name in ("barrier", "empty")
            )
            found.append(barrier - empty)
        return tuple(found)


Dose = Callable[[str, float], list[Done]]


def measure(
    workload: Workload, task: Task[Problem], ranks: Gang, winner: Config, base: Base, amount: Amount,
    watch: Callable[[str, int, int], None] = lambda phase, done, of: None, trace: bool = False,
) -> Taxes:  # fmt: skip
    """Measure the ladder of a problem, and both doses; with ``trace`` also one traced call. ``ranks`` are running.

    Raises AutotuneError if no two rungs can be measured.
    """
    machine = task.machine
    if amount.rounds < FEWEST_ROUNDS:
        raise AutotuneError(f"{amount.rounds} round: an interval needs at least {FEWEST_ROUNDS}")
    rungs, missing = ladder_of(workload, task, base.config, winner)
    run = Course(ranks, machine, amount, watch, missing)
    run.check(rungs)
    if len(run.configs) < 2:
        said = "; ".join(f"{letter}: {reason}" for letter, reason in missing.items())
        raise AutotuneError(f"a ladder needs two rungs that can be measured: {said}")
    run.warm()
    times, clocks, parts = run.rounds()
    barrier = run.barrier()

    def launched(letter: str, dose: float) -> list[Done]:
        return run.turn(letter, run.configs[letter].replace(empty_launches=int(dose)) if dose else None)

    def delayed(letter: str, dose: float) -> list[Done]:
        return run.turn(letter, late=dose, late_rank=task.problem.world_size - 1)

    phased = [letter for letter in DOSED if workload.overlapping]
    alone = task.problem.world_size == 1
    launches = run.doses(phased, LAUNCHES, "empty launches", launched)
    late = run.doses(() if alone else DELAYED, amount.late, "a late rank", delayed)
    traces = {letter: run.traced(letter) for letter in TRACED if trace and letter in run.configs}
    return Taxes(
        winner=winner,
        base=base.config,
        origin=base.origin,
        configs=run.configs,
        missing=missing,
        rounds={letter: tuple(each) for letter, each in times.items()},
        parts={name: tuple(each) for name, each in parts.items() if len(each) == amount.rounds},
        clocks={} if machine.is_interpreter else {letter: tuple(each) for letter, each in clocks.items()},
        launches=launches,
        boundaries=workload.boundaries,
        late=late,
        barrier=barrier,
        interpreted=machine.is_interpreter,
        traces={letter: found for letter, found in traces.items() if found is not None},
    )


def typical(answers: Sequence[Done]) -> float:
    """The median over a turn's calls of the slowest rank."""
    return statistics.median(slowest([answer.times for answer in answers]))


def rotated(order: Sequence[T], number: int) -> list[T]:
    """The order of round ``number``: each round begins with the next, so that none always follows the same one cold."""
    first = number % len(order)
    return [*order[first:], *order[:first]]
