"""Small fleets for tests: problems, and hosts that tune them at once, as a test says, under real leases."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fakes import EIGHT_GPUS, begun, latency_of

import autotune
from autotune.config import Config
from autotune.db import CacheKey, Lease, Store, Winner
from autotune.fleet.problem_list import Asked
from autotune.fleet.standing import rows_of
from autotune.fleet.worker import Watch, Worker
from autotune.machine import Machine
from autotune.outcome import DEFAULT_REGIME
from autotune.task import Task
from autotune.tuning import Progress, Result
from autotune.tuning.claim import claimed
from autotune.workloads import provenance_of, workload

WORKLOAD = workload("all_gather_gemm")
WINNER = Winner(Config({"mode": "bsp", "launch": "eager"}), latency_of(100.0))
DONE, NOT_MEASURED = "done", "not measured"

Act = Callable[[int], str]
"""What becomes of a problem of that m: DONE or NOT_MEASURED, unless it raises."""


def asked(m: int, world_size: int = 2, **fields: Any) -> Asked:
    problem = autotune.AllGatherGemm(m=m, n=64, k=64, world_size=world_size)
    return Asked(WORKLOAD, problem, DEFAULT_REGIME, **fields)


def m_of(found: Asked) -> int:
    return found.problem.m  # type: ignore[attr-defined, no-any-return]


@dataclass
class Host:
    url: str
    act: Act = lambda m: DONE
    machine: Machine = EIGHT_GPUS
    started: list[int] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    at_work: threading.Event = field(default_factory=threading.Event)

    def run(self, *problems: Asked) -> list[str]:
        """Work through a list; the states of its problems afterwards."""
        with Store.open(self.url) as store:
            self.store = store
            Worker(store, self.machine, problems, self.tune, self.told.append, self.machine.gpus).run()
        return states(self.url, *problems)

    def tune(self, found: Asked, begun: Watch) -> Result:
        key, provenance = CacheKey.of(Task(found.problem, self.machine), found.regime), provenance_of(WORKLOAD)
        with claimed(self.store, lambda: self.store.study(key, provenance, seed=0, space_size=1), begun) as (
            study,
            lease,
        ):
            if study.state == "finished":
                return Result(study, Progress(), self.store.entry(key, provenance), from_cache=True)
            begun(Progress("searching"))
            self.started.append(m_of(found))
            self.at_work.set()
            if self.act(m_of(found)) == NOT_MEASURED:
                return Result(study, Progress(), None)
            self.store.finish(study.id, dataclasses.replace(WINNER, verified=not found.search), lease)
            return Result(study, Progress(), self.store.entry(key, provenance))


def states(url: str, *problems: Asked) -> list[str]:
    with Store.open(url) as store:
        return [row.state for row in rows_of(problems, store)]


def dead_lease() -> Lease:
    return dataclasses.replace(Lease.new(), started="another start")


def lease(url: str, found: Asked, by: Lease) -> int:
    with Store.open(url) as store:
        study = begun(store, WORKLOAD, Task(found.problem, EIGHT_GPUS), found.regime)
        assert store.take_lease(study.id, by) is None
        return study.id
