"""Answers from the cache: a stored winner that today's space refuses for the problem is none, as for a look-up."""

from __future__ import annotations

import logging
from collections.abc import Callable

from autotune.db import CacheKey, Entry, Store, StudyRecord
from autotune.outcome import Regime
from autotune.problem import Problem
from autotune.task import Task
from autotune.workloads import Workload, provenance_of

LOG = logging.getLogger("autotune")


def cached(
    store: Store, workload: Workload, task: Task[Problem], regime: Regime, *, search: bool = True
) -> Entry | None:  # fmt: skip
    """The entry that answers for the problem, without tuning; to a ``search`` no verified one does."""
    entry = store.entry(CacheKey.of(task, regime), provenance_of(workload))
    if entry is None or (search and entry.winner.verified):
        return None
    return entry if workload.unservable(entry.winner.config, task, regime) is None else None


def answers(
    workload: Workload, task: Task[Problem], regime: Regime, *, search: bool = True
) -> Callable[[StudyRecord], bool]:  # fmt: skip
    """True of a finished study that answers for the problem; else the log says why not."""

    def answer(study: StudyRecord) -> bool:
        assert study.winner is not None, "finished"
        if search and study.winner.verified:
            return False
        reason = workload.unservable(study.winner.config, task, regime)
        if reason is not None:
            LOG.warning("%s: the tuned config is not valid here, tuning anew: %s", task.problem, reason)
        return reason is None

    return answer
