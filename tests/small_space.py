"""A space small enough to know everything about, ranks that answer by a formula, and a run of the loop over them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fakes import LAPTOP, latency_of

from autotune.config import Config
from autotune.db import Store, TrialRecord
from autotune.machine import Machine
from autotune.outcome import Evaluation, HostOverhead, Latency, Outcome
from autotune.problem import Problem, size
from autotune.ranks.protocol import Failed
from autotune.search_spaces import Constraint, Space, Task, choices, numbers
from autotune.timeline import Traced
from autotune.tuning import Budget, Effort, Progress, Result, tune
from autotune.tuning.screening import Screen
from autotune.workloads import Workload

EFFORT = Effort(trials=24, screen=3, iterations=9, finalists=2, rounds=2)
BSP = Config({"mode": "bsp"})
BEST = Config({"mode": "push", "tile": 64, "unit": 128})
"""The fastest by ``time_of``: neither the default nor next to it."""


@dataclass(frozen=True, kw_only=True)
class SmallProblem(Problem):
    workload = "small"

    width: int = size("numbers on each rank")


def _whole_tiles(s: Task[Any], tile: int, unit: int) -> bool:
    return unit % tile == 0


class SmallWorkload(Workload):
    """37 valid configs: one bsp and 36 pushes."""

    name = "small"
    problem_type = SmallProblem
    space = Space(
        choices("mode", "bsp", "push"),
        numbers("tile", 2, 4, 8, 16, 32, 64, 128, 256, modes=("push",)),
        numbers("unit", 2, 4, 8, 16, 32, 64, 128, 256, modes=("push",)),
        constraints=(Constraint("whole", ("tile", "unit"), _whole_tiles, "a unit holds whole tiles"),),
    )

    def default_problem(self, machine: Machine, world_size: int) -> SmallProblem:
        return SmallProblem(width=1024, world_size=world_size)

    def default_config(self, task: Task[Any]) -> Config:
        return Config({"mode": "push", "tile": 2, "unit": 2})

    def first_configs(self, task: Task[Any]) -> list[Config]:
        return [self.default_config(task), Config({"mode": "push", "tile": 2, "unit": 256})]

    def baselines(self, task: Task[Any]) -> dict[str, Config]:
        return {"bsp": BSP}

    def operation(self, *_: Any) -> Any:
        raise NotImplementedError


WORKLOAD = SmallWorkload()
PROBLEM = SmallProblem(width=1024, world_size=2)
TASK = Task(PROBLEM, LAPTOP)
EVERYTHING = set(WORKLOAD.space.enumerate(TASK))


def time_of(config: Config) -> float:
    """Microseconds: 300 for bsp, a bowl around ``BEST`` for the others."""
    if config == BSP:
        return 300.0
    return 200.0 * (
        1 + 0.1 * abs(math.log2(config.integer("tile") / 64)) + 0.07 * abs(math.log2(config.integer("unit") / 128))
    )


@dataclass
class Ranks:
    """Stands in for a gang: a time for each config, what it was asked, and what is to go wrong."""

    time: Callable[[Config], float] = time_of
    raises: dict[int, type[BaseException]] = field(default_factory=dict)
    """By the number of the call."""
    fails: dict[Config, Outcome] = field(default_factory=dict)
    flaky: set[Config] = field(default_factory=set)
    """Right in an evaluation, wrong in the proof."""
    proved: list[Config] = field(default_factory=list)
    calls: list[tuple[Config, int, Any]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    traced: Callable[[], Traced | Failed] = lambda: Traced(1.0, ((),))
    restarts: int = 0

    @property
    def configs(self) -> list[Config]:
        return [config for config, _, _ in self.calls]

    def start(self) -> None:
        self.log.append("start")

    def close(self) -> None:
        self.log.append("close")

    def evaluate(self, config: Config, seed: int, plan: Any) -> Evaluation:
        if len(self.calls) in self.raises:
            raise self.raises[len(self.calls)]("planted")
        self.calls.append((config, seed, plan))
        if config in self.fails:
            return Evaluation(self.fails[config], "planted")
        time = self.time(config)
        return Evaluation(Outcome.MEASURED, latency=latency_of(time), times=(time,) * plan.iterations)

    def prove(self, config: Config, seed: int, latency: float) -> Evaluation | None:
        self.proved.append(config)
        return Evaluation(Outcome.WRONG_RESULT, "planted: call 117") if config in self.flaky else None

    def measure_parts(self, plan: Any) -> dict[str, Latency]:
        return {"sum": latency_of(120.0)}

    def measure_overhead(self) -> HostOverhead | None:
        return None

    def measure_rates(self, dtype: str) -> dict[str, float]:
        return {}

    def trace(self, config: Config, latency: float) -> Traced | Failed:
        self.log.append("trace")
        return self.traced()


def run(path: Path, ranks: Ranks, trials: int = 20, **options: Any) -> Result:
    """One run of the loop as a new process would make it, on a laptop, where nothing is compiled."""
    watch: Callable[[Progress], None] = options.pop("watch", lambda progress: None)
    problem, budget = options.pop("problem", PROBLEM), options.pop("budget", Budget(trials))
    with Store.open(path) as store, Screen(WORKLOAD, Task(problem, LAPTOP)) as screen:
        return tune(
            WORKLOAD, Task(problem, LAPTOP), store, ranks, screen, budget=budget, effort=EFFORT, watch=watch, **options
        )  # fmt: skip


def kept(path: Path, *, finals: bool = False, study: int | None = None) -> list[TrialRecord]:
    """The stored trials of the search, or of the finals."""
    with Store.open(path) as store:
        trials = store.trials(study or store.studies()[-1].id)
    return [trial for trial in trials if (trial.source == "final") == finals]


FINALS = EFFORT.rounds * (EFFORT.finalists + 2)
"""Evaluations of the finals: the best ones, the default and the baseline."""
