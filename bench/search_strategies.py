"""Ways to search a recorded space: ours, and its rivals. Each gets a table, a number of trials and a seed.

A trial is a config that would have been compiled and run, whatever came of it. Proposals that break a constraint are
refused unrun and cost nothing, for every strategy alike.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import json
import math
import random
import tempfile
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna

from autotune.config import Config, Value
from autotune.machine import Machine
from autotune.outcome import Evaluation, Outcome
from autotune.ranks.evaluation import MeasurePlan
from autotune.recordings import Recording, Replay, read
from autotune.search_spaces import Space
from autotune.search_spaces.gemm import gemm_dimensions
from autotune.tuning.search import Search
from autotune.workloads import Workload, names, workload

AHEAD = 8
"""Configs that our search proposes before it learns how the first of them ended: what compiles ahead costs."""

IN_VAIN = 50
"""Proposals a trial that may break a constraint, before a rival is taken to be at its end."""

COMPUTE = (
    *(dimension.name for dimension in gemm_dimensions(())),
    "split_k", "schedule", "kv_splits", "heads_per_program", "table_reads", "program_order",
)  # fmt: skip
"""Dimensions that a kernel without communication would have too."""

PLAN = MeasurePlan()


@dataclass(frozen=True)
class Table:
    """A recording, opened for searching."""

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
            return cls(name, recording, None, None, recording.own_space())
        found = workload(recording.workload)
        fitted = recording.fitted(found)
        return cls(name, fitted, found, fitted.problem_of(found), fitted.space_of(found))

    @property
    def machine(self) -> Machine:
        """What it was recorded on."""
        return self.recording.machine

    @functools.cached_property
    def first(self) -> list[Config]:
        """The configs that the tuning loop tries first; in the reduced space, the nearest ones."""
        if self.workload is None:
            return []
        default = self.workload.default_config(self.problem, self.machine)
        wanted = [default, *self.workload.baselines(self.problem, self.machine).values()]
        wanted += self.workload.first_configs(self.problem, self.machine)
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
        """The cost model's microseconds."""
        return self.workload.predict(self.problem, config, self.machine) if self.workload is not None else None

    def latency(self, evaluation: Evaluation) -> float:
        """Microseconds, infinite where there is none."""
        return evaluation.latency.median if evaluation.latency is not None else math.inf


Strategy = Callable[[Table, int, int], list[float]]
"""The latencies, in µs, of so many trials with a seed, in their order; infinite where there was none."""

BUDGETED = ("compute, then communication", "Kernel Tuner")
"""Prefixes of strategies that divide their budget: the first trials of a longer run are not a shorter run."""


def ours(table: Table, trials: int, seed: int) -> list[float]:
    """The tuning loop's search with its first configs and the cost model."""
    return list(_search(table, table.space, trials, seed, table.first, table.predict).values())


def ours_without_first(table: Table, trials: int, seed: int) -> list[float]:
    """The same, told nothing: what the sampler and the local search are worth alone."""
    return list(_search(table, table.space, trials, seed, []).values())


def one_at_a_time(table: Table, trials: int, seed: int) -> list[float]:
    """Told nothing, and each proposal with all that went before it known: what going ahead is measured by."""
    return list(_search(table, table.space, trials, seed, [], ahead=1).values())


def sequential(table: Table, trials: int, seed: int) -> list[float]:
    """Half of the trials on the compute dimensions, communication as in the default; then the rest with those fixed.

    The search is ours both times, the cost model with it.
    """
    start = table.start
    fixed: dict[str, list[Value]] = {name: [value] for name, value in start.items() if name not in COMPUTE}
    compute = _search(table, table.space.restricted(fixed), trials // 2, seed, [start], table.predict)
    best = min(compute, key=lambda config: compute[config], default=start)
    chosen: dict[str, list[Value]] = {name: [value] for name, value in best.items() if name in COMPUTE}
    left = trials - len(compute) + 1  # the best is known, and measured for nothing
    rest = _search(table, table.space.restricted(chosen), left, seed, [best], table.predict)
    return [*compute.values(), *(latency for config, latency in rest.items() if config != best)]


def tpe(table: Table, trials: int, seed: int) -> list[float]:
    """Optuna's TPE as it comes; of the space it knows the dimensions, invalid configs are pruned."""
    replay = Replay(table.recording)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    space = table.space.narrowed(table.problem, table.machine)
    found: list[float] = []
    for _ in range(trials * IN_VAIN):
        if len(found) == trials:
            break
        trial = study.ask()
        config = space.suggest(trial)
        evaluation = Evaluation(Outcome.INVALID)
        if space.violation(config, table.problem, table.machine) is None:
            evaluation = replay.evaluate(config, 0, PLAN)
            found.append(table.latency(evaluation))
        if evaluation.latency is None:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            study.tell(trial, evaluation.latency.median)
    return found


def randomly(table: Table, trials: int, seed: int) -> list[float]:
    """Valid configs drawn at random, none twice."""
    evaluations = list(table.recording.evaluations.values())
    drawn = random.Random(seed).sample(evaluations, min(trials, len(evaluations)))
    return [table.latency(evaluation) for evaluation in drawn]


def exhaustive(table: Table, trials: int, seed: int) -> list[float]:
    """The configs in the order of the list, as Triton's autotuner takes them; no seed matters."""
    evaluations = list(table.recording.evaluations.values())
    return [table.latency(evaluation) for evaluation in evaluations[:trials]]


def kernel_tuner(strategy: str) -> Strategy:
    """A strategy of Kernel Tuner in its simulation mode."""

    def run(table: Table, trials: int, seed: int) -> list[float]:
        import kernel_tuner as tuner
        import numpy as np

        keys = {_indices(table, config): table.latency(e) for config, e in table.recording.evaluations.items()}
        names = list(table.space.dimensions)
        parameters = {name: list(range(len(table.space.dimensions[name].values))) for name in names}
        random.seed(seed)
        np.random.seed(seed)
        with (
            tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()),
            warnings.catch_warnings(),
        ):  # fmt: skip
            warnings.simplefilter("ignore")
            cache = Path(folder) / "cache.json"
            cache.write_text(json.dumps(_cache(parameters, keys)))
            results, _ = tuner.tune_kernel(
                "recorded", "recorded", 1, [], parameters, lang="C", cache=str(cache), simulation_mode=True,
                restrictions=[_recorded(names, keys)], strategy=strategy,
                strategy_options={"max_fevals": trials}, quiet=True,
            )  # fmt: skip
        times = (result.get("time") for result in results)
        return [float(each) if isinstance(each, int | float) else math.inf for each in times]

    return run


def strategies() -> dict[str, Strategy]:
    """All that can run here, by name."""
    found: dict[str, Strategy] = {
        "ours": ours,
        "ours, told nothing": ours_without_first,
        "ours, told nothing, one at a time": one_at_a_time,
        "compute, then communication": sequential,
        "Optuna TPE": tpe,
        "random": randomly,
        "exhaustive (Triton)": exhaustive,
    }
    if importlib.util.find_spec("kernel_tuner") is not None:
        for name in ("genetic_algorithm", "greedy_ils"):
            found[f"Kernel Tuner {name}"] = kernel_tuner(name)
    return found


def _search(
    table: Table, space: Space, trials: int, seed: int, first: Sequence[Config],
    predict: Callable[[Config], float | None] = lambda config: None, ahead: int = AHEAD,
) -> Mapping[Config, float]:  # fmt: skip
    """The latency of every config that our search took, proposed ``ahead`` of what it knows, the one asked included."""
    known = [config for config in first if space.violation(config, table.problem, table.machine) is None]
    search = Search(space, table.problem, table.machine, seed, known, [], lambda config, evaluation: None, predict)
    replay = Replay(table.recording)
    waiting: deque[Any] = deque()
    found: dict[Config, float] = {}
    while len(found) < trials:
        while len(waiting) < min(ahead, trials - len(found)):
            candidate = search.ask()
            if candidate is None:
                break
            waiting.append(candidate)
        if not waiting:
            break
        candidate = waiting.popleft()
        evaluation = replay.evaluate(candidate.config, 0, PLAN)
        search.tell(candidate, evaluation)
        found[candidate.config] = table.latency(evaluation)
    return found


def _indices(table: Table, config: Config) -> tuple[int, ...]:
    """The config as Kernel Tuner has it: an index for each dimension, 0 for those that its mode lacks."""
    parameters = table.space.parameters(config)
    return tuple(parameters.get(name, 0) for name in table.space.dimensions)


def _recorded(names: Sequence[str], keys: Iterable[tuple[int, ...]]) -> Any:
    """The recorded configs as a constraint for Kernel Tuner's solver, which prunes unknown prefixes."""
    from constraint import Constraint

    projections: dict[tuple[int, ...], set[tuple[int, ...]]] = {}

    class Recorded(Constraint):  # type: ignore[misc]
        def __call__(self, variables: Any, domains: Any, assignments: Any, *rest: Any) -> bool:
            assigned = tuple(i for i, name in enumerate(names) if name in assignments)
            if assigned not in projections:
                projections[assigned] = {tuple(key[i] for i in assigned) for key in keys}
            return tuple(assignments[names[i]] for i in assigned) in projections[assigned]

    return Recorded()


def _cache(parameters: Mapping[str, Sequence[int]], keys: Mapping[tuple[int, ...], float]) -> dict[str, Any]:
    entries = {
        ",".join(map(str, key)): {
            **dict(zip(parameters, key, strict=True)),
            "time": latency if math.isfinite(latency) else "RuntimeFailedConfig",
        }
        for key, latency in keys.items()
    }
    return {
        "device_name": "recorded", "kernel_name": "recorded", "problem_size": 1, "tune_params_keys": list(parameters),
        "tune_params": dict(parameters), "objective": "time", "cache": entries,
    }  # fmt: skip
