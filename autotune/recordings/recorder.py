"""Recording: every config of a reduced space is compiled ahead, measured on the ranks, and kept in the store."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from autotune.config import Value
from autotune.db import CacheKey, Store, TrialRecord
from autotune.errors import InputError
from autotune.outcome import Evaluation
from autotune.problem import Problem
from autotune.ranks.evaluation import MeasurePlan, warm_from
from autotune.recordings.recording import Recording
from autotune.search_spaces import Space
from autotune.task import Task
from autotune.tuning import Evaluator
from autotune.tuning.screening import Ahead, Screen
from autotune.tuning.search import Candidate
from autotune.workloads import Workload, provenance_of

SOURCE = "recorded"

WARMUP = 2


def record(
    workload: Workload, task: Task[Problem], store: Store, gang: Evaluator, screen: Screen,
    *, allowed: Mapping[str, Sequence[Value]], lifted: Sequence[str] = (), limit: int, iterations: int,
    watch: Callable[[int, int], None] = lambda done, size: None,
) -> Recording:  # fmt: skip
    """Measure every valid config of the space reduced to ``allowed``, each with ``iterations`` iterations.

    The constraints in ``lifted`` are dropped and left to the compilers: so a recording also holds failures, as in the
    space of a kernel whose author wrote no such constraint. The store's study of the reduced space holds the finished
    configs: the same call continues an interrupted recording. Configs are measured in a random order, so that a drift
    of the clocks affects no dimension. ``watch`` gets the numbers of finished and of all configs. Raises InputError for
    more than ``limit`` configs, GangError, StoreError.
    """
    space = workload.space.restricted(allowed, lifted)
    size = space.size(task)
    if not 0 < size <= limit:
        if size:
            raise InputError(f"the reduced space has {size} valid configs: allow fewer (the limit is {limit})")
        why = _emptied_by(workload.space, allowed, lifted, task)
        raise InputError(f"the reduced space has no valid config{why}: allow other values")
    provenance = dataclasses.replace(provenance_of(workload), space=space.fingerprint())
    study = store.study(CacheKey.of(task), provenance.as_recording(), seed=0, space_size=size)
    evaluations = {trial.config: trial.evaluation for trial in store.trials(study.id)}
    configs = list(space.enumerate(task))
    waiting = iter(random.Random(study.seed).sample(configs, size))

    def next_one() -> Candidate | None:
        config = next((config for config in waiting if config not in evaluations), None)
        return Candidate(config, SOURCE) if config is not None else None

    ahead = Ahead(screen)
    ahead.fill(next_one)
    gang.start()
    plan = MeasurePlan(WARMUP, iterations, iterations, warm_from=warm_from(task.machine))
    while ahead:
        watch(len(evaluations), size)
        candidate, refused = ahead.take()
        evaluation = refused or gang.evaluate(candidate.config, len(evaluations), plan)
        store.record(study.id, TrialRecord(candidate.config, evaluation, source=SOURCE))
        evaluations[candidate.config] = evaluation
        ahead.fill(next_one)
    watch(len(evaluations), size)
    return Recording(
        workload=workload.name,
        problem=task.problem.as_dict(),
        machine=task.machine,
        provenance=provenance,
        recorded_at=datetime.now(UTC),
        origin="measured",
        restriction={name: tuple(values) for name, values in allowed.items()},
        lifted=tuple(lifted),
        dimensions={name: dimension.values for name, dimension in space.dimensions.items()},
        evaluations={config: _kept(evaluations[config]) for config in configs},
        parts=gang.measure_parts(plan),
    )


def _emptied_by(
    space: Space, allowed: Mapping[str, Sequence[Value]], lifted: Sequence[str], task: Task[Problem]
) -> str:
    """The constraints without any one of which configs would be left; nothing where several forbid each config."""
    others = [each for each in space.constraints if each.name not in lifted]
    alone = [each for each in others if space.restricted(allowed, [*lifted, each.name]).size(task)]
    return "".join(f"; every config breaks {each.name} ({each.reason})" for each in alone)


def _kept(evaluation: Evaluation) -> Evaluation:
    """The part of an evaluation that a recording keeps."""
    latency, seconds = evaluation.latency, evaluation.seconds
    kept = None if latency is None else dataclasses.replace(latency, by_rank=())
    total = seconds.get("total", sum(seconds.values()))
    return dataclasses.replace(evaluation, latency=kept, error=None, seconds={"total": total})
