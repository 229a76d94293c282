"""Answers from the cache: a stored winner that today's space refuses for the problem is none, as for a look-up."""

from __future__ import annotations

import logging
from collections.abc import Callable

from autotune.config import Config
from autotune.db import CacheKey, Entry, Store, StudyRecord
from autotune.outcome import Regime
from autotune.problem import Problem
from autotune.task import Task
from autotune.workloads import Workload, provenance_of

LOG = logging.getLogger("autotune")


def cached(store: Store, workload: Workload, task: Task[Problem], regime: Regime) -> Entry | None:
    """The entry that answers for the problem, without tuning."""
    entry = store.entry(CacheKey.of(task, regime), provenance_of(workload))
    answers = entry is not None and workload.unservable(entry.winner.config, task, regime) is None
    return entry if answers else None


def answers(workload: Workload, task: Task[Problem], regime: Regime) -> Callable[[StudyRecord], bool]:
    """True of a finished study that answers for the problem; else the log says why not."""

    def answer(study: StudyRecord) -> bool:
        reason = workload.unservable(_winner(study), task, regime)
        if reason is not None:
            LOG.warning("%s: the tuned config is not valid here, tuning anew: %s", task.problem, reason)
        return reason is None

    return answer


def _winner(study: StudyRecord) -> Config:
    assert study.winner is not None, "finished"
    return study.winner.config
