"""Ways to search a recorded space: ours, and its rivals. Each gets a table, a number of trials and a seed.

A trial is a config that would have been compiled and run, whatever came of it. Proposals that break a constraint are
refused unrun and cost nothing, for every strategy alike.
"""

from __future__ import annotations

import functools
import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState

from autotune.config import Config, Value
from autotune.kernels.gemm.tile import GemmTile
from autotune.machine import Machine
from autotune.outcome import Evaluation
from autotune.ranks.evaluation import MeasurePlan
from autotune.recordings.file import read
from autotune.recordings.recording import Recording
from autotune.recordings.replay import Replay
from autotune.search_spaces import Constraint, Dimension, Space
from autotune.search_spaces.joint import dimensions_of
from autotune.task import Task
from autotune.tuning import Given, JointSampler
from autotune.tuning.search.proposer import no_prediction
from autotune.workloads import Workload, names, workload

AHEAD = 8
"""Configs that our search proposes before it learns how the first of them ended: what compiles ahead costs."""

IN_VAIN = 50

COMPUTE = (
    *(dimension.name for dimension in dimensions_of(GemmTile)),
    "schedule", "programs_per_head", "heads_per_program", "table_reads", "program_order",
)  # fmt: skip
"""Dimensions that a kernel without communication would have too."""

PRUNED = TrialState.PRUNED


def own_space(recording: Recording) -> Space:
    """The space of a kernel that is not a workload here: every recorded config is valid. Numbers count as ordered."""
    recorded = {tuple(config[name] for name in recording.dimensions) for config in recording.evaluations}
    dimensions = [
        Dimension(name, tuple(values), ordinal=all(type(value) is int for value in values))
        for name, values in recording.dimensions.items()
    ]
    valid = Constraint(
        "recorded", tuple(recording.dimensions), lambda setting, **values: tuple(values.values()) in recorded,
        "not in the recording",
    )  # fmt: skip
    return Space(*dimensions, constraints=(valid,))


@dataclass(frozen=True)
class Table:
    name: str
    recording: Recording
    workload: Workload | None
    """None for a kernel that is not ours: no cost model, no first configs, no problem of a type that we know."""
    problem: Any
    space: Space

    @classmethod
    def open(cls, file: Path) -> Table:
        """Read and check a recording; raises InputError."""
        recording, name = read(file), file.name.removesuffix(".json.gz")
        if recording.workload not in names():
            return cls(name, recording, None, None, own_space(recording))
        found = workload(recording.workload)
        return cls(name, recording, found, recording.problem_of(found), recording.space_of(found))

    @property
    def machine(self) -> Machine:
        return self.recording.machine

    @functools.cached_property
    def task(self) -> Task[Any]:
        return Task(self.problem, self.machine)

    @functools.cached_property
    def valid(self) -> list[Config]:
        return [config for config in self.recording.evaluations if self.space.violation(config, self.task) is None]

    @functools.cached_property
    def first(self) -> list[Config]:
        """The configs that the tuning loop tries first; in the reduced space, the nearest ones."""
        if self.workload is None:
            return []
        default = self.workload.default_config(self.task)
        wanted = [default, *self.workload.baselines(self.task).values()]
        wanted += self.workload.first_configs(self.task)
        return list(dict.fromkeys(near for config in wanted if (near := self._nearest(config)) is not None))

    @functools.cached_property
    def start(self) -> Config:
        """The first of those that is fused: where tuning one part after the other starts."""
        return next(config for config in self.first if config["mode"] != "bsp")

    def _nearest(self, wanted: Config) -> Config | None:
        """The recorded config of the same mode that differs in the fewest dimensions."""
        recorded = [config for config in self.recording.evaluations if config["mode"] == wanted["mode"]]
        return max(recorded, key=lambda config: len(wanted.items() & config.items()), default=None)

    def predict(self, config: Config) -> float | None:
        return self.workload.predict(self.task, config) if self.workload is not None else None

    def latency(self, evaluation: Evaluation) -> float:
        """Microseconds, infinite where there is none."""
        return evaluation.latency.median if evaluation.latency is not None else math.inf


Strategy = Callable[[Table, int, int], list[float]]
"""The latencies, in µs, of so many trials with a seed, in their order; infinite where there was none."""

SEQUENTIAL = "compute, then communication"
"""The strategy that divides its budget: the first trials of a longer run are not a shorter run."""


def ours(table: Table, trials: int, seed: int) -> list[float]:
    """The tuning loop's sampler with its first configs and the cost model."""
    return latencies(_joint(table, table.space, trials, seed, table.first, table.predict))


def ours_without_first(table: Table, trials: int, seed: int) -> list[float]:
    """Our sampler, told nothing: what the surrogate and TPE are worth alone."""
    return latencies(_joint(table, table.space, trials, seed, []))


def one_at_a_time(table: Table, trials: int, seed: int) -> list[float]:
    """Told nothing, and each proposal with all that went before it known: what going ahead is measured by."""
    return latencies(_joint(table, table.space, trials, seed, [], ahead=1))


def sequential(table: Table, trials: int, seed: int) -> list[float]:
    """Half of the trials on the compute dimensions, communication as in the default; then the rest with those fixed.

    The sampler is ours both times, the cost model with it.
    """
    start = table.start
    fixed: dict[str, list[Value]] = {name: [value] for name, value in start.items() if name not in COMPUTE}
    space = table.space.restricted(fixed)
    compute = dict(_joint(table, space, trials // 2, seed, [start], table.predict))
    best = min(compute, key=lambda config: compute[config], default=start)
    chosen: dict[str, list[Value]] = {name: [value] for name, value in best.items() if name in COMPUTE}
    left = trials - len(compute) + 1  # the best is known, and measured for nothing
    rest = _joint(table, table.space.restricted(chosen), left, seed, [best], table.predict)
    return [*compute.values(), *(latency for config, latency in rest if config != best)]


def tpe(table: Table, trials: int, seed: int) -> list[float]:
    """Optuna's TPE as it comes; of the space it knows the dimensions, invalid configs are pruned."""
    space = table.space.narrowed(table.task)
    return latencies(searched(table, space, optuna.samplers.TPESampler(seed=seed), trials))


def randomly(table: Table, trials: int, seed: int) -> list[float]:
    """Valid configs drawn at random, none twice."""
    drawn = random.Random(seed).sample(table.valid, min(trials, len(table.valid)))
    return [table.latency(table.recording.evaluations[config]) for config in drawn]


def exhaustive(table: Table, trials: int, seed: int) -> list[float]:
    """The configs in the order of the list, as Triton's autotuner takes them; no seed matters."""
    return [table.latency(table.recording.evaluations[config]) for config in table.valid[:trials]]


def searched(
    table: Table, space: Space, sampler: optuna.samplers.BaseSampler, trials: int, ahead: int = 1
) -> list[tuple[Config, float]]:
    """The one study that all samplers are compared in: its trials' configs and latencies, in order.

    It is asked ``ahead`` of what it is told, the one asked included. What breaks a constraint is pruned, and no trial.
    """
    study = optuna.create_study(sampler=sampler)
    replay = Replay(table.recording)
    waiting: deque[tuple[optuna.Trial, Config]] = deque()
    found: list[tuple[Config, float]] = []
    for _ in range(trials * IN_VAIN):
        if len(waiting) < min(ahead, trials - len(found)) and _has_more(sampler, study):
            trial = study.ask()
            config = space.suggest(trial)
            if space.violation(config, table.task) is None:
                waiting.append((trial, config))
            else:
                study.tell(trial, state=PRUNED)
            continue
        if not waiting:
            break
        trial, config = waiting.popleft()
        latency = table.latency(replay.evaluate(config, 0, MeasurePlan()))
        study.tell(trial, *((latency,) if math.isfinite(latency) else (None, PRUNED)))
        found.append((config, latency))
    return found


def _joint(
    table: Table, space: Space, trials: int, seed: int, first: Sequence[Config],
    predict: Callable[[Config], float | None] = no_prediction, ahead: int = AHEAD,
) -> list[tuple[Config, float]]:  # fmt: skip
    """The configs that our sampler proposes in a space, with their latencies."""
    valid = [config for config in first if space.violation(config, table.task) is None]
    given = Given(space, table.task, valid, predict=predict).narrowed
    return searched(table, given.space, JointSampler(seed, given, logarithmic=True), trials, ahead)


def _has_more(sampler: optuna.samplers.BaseSampler, study: optuna.Study) -> bool:
    """False where ours has used the space up; Optuna's own repeat themselves."""
    return not isinstance(sampler, JointSampler) or sampler.ready(study)


def latencies(found: Iterable[tuple[Config, float]]) -> list[float]:
    return [latency for _, latency in found]


STRATEGIES: dict[str, Strategy] = {
    "ours": ours,
    "ours, told nothing": ours_without_first,
    "ours, told nothing, one at a time": one_at_a_time,
    SEQUENTIAL: sequential,
    "Optuna TPE": tpe,
    "random": randomly,
    "exhaustive (Triton)": exhaustive,
}
