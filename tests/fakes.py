"""A gang without ranks for tests: latencies are a formula of the config, and some configs end in each other way.

And the command line over it, in this process.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from typer import testing
from typer.testing import CliRunner
from typer.testing import Result as Ended

from autotune.cli import app, session
from autotune.config import Config
from autotune.db import CacheKey, Lease, Store, StudyRecord
from autotune.machine import HOSTS, INTERPRETED, Machine
from autotune.outcome import DEFAULT_REGIME, Evaluation, HostOverhead, Latency, Outcome
from autotune.problem import Problem
from autotune.ranks.protocol import Done, Failed, MeasureBarrier, Stamped, Trace, Turn
from autotune.runtime.lookup import forget_lookups
from autotune.task import Task
from autotune.timeline import Traced
from autotune.tuning import Budget, Effort, Result, tune
from autotune.tuning.search import proposer
from autotune.workloads import Workload, names, provenance_of, workload

LAPTOP, EIGHT_GPUS = INTERPRETED, HOSTS["H200"]

BASELINE = 530.0
LIMITS = {"all_gather": 209.0, "gemm": 330.0}
RATES = {"links": 350e3, "memory": 4e6, "flops": 750e6}
"""Rates of a device per microsecond."""

FAILURES: dict[Outcome, Callable[[Config], bool]] = {
    Outcome.DID_NOT_COMPILE: lambda c: c.get("block_k") == 128 and c.get("block_n") == 256,
    Outcome.OUT_OF_RESOURCES: lambda c: c.get("num_stages") == 6,
    Outcome.WRONG_RESULT: lambda c: c.get("peer_order") == "fanout" and c.get("transfer_rows") == 16,
    Outcome.TIMED_OUT: lambda c: c.get("copy_kib") == 2 and c.get("group_m") == 16,
    Outcome.CRASHED: lambda c: c.get("push_site") == "same_stream" and c.get("num_stages") == 1,
}
"""Failing configs of all-gather + GEMM, by outcome."""


def latency_of(median: float, ranks: int = 2, host: float | None = None, isolated: float | None = None) -> Latency:
    """A latency of ±1 % with a little skew."""
    by_rank = tuple(median * (1 - 0.005 * rank) for rank in range(ranks))
    return Latency(median, median * 0.99, median * 1.01, median * 0.004, 15, by_rank, host, isolated)


def formula(config: Config) -> float:
    """Microseconds: a bowl with its bottom at a push of middling tiles, between 380 and some 2000."""
    if config["mode"] == "bsp":
        return BASELINE if config.get("launch") == "graph" else BASELINE + 20
    median = {"pull": 520.0, "pull_staged": 420.0, "push": 380.0}.get(str(config["mode"]), 600.0)
    for name, best in (("block_m", 64), ("block_n", 128), ("block_k", 64), ("num_stages", 3), ("comm_programs", 8)):
        if name in config:
            median *= 1 + 0.06 * abs(math.log2(config.integer(name) / best))
    return median


def rung_formula(request: Turn) -> float:
    """What ``tune taxes`` times, in microseconds: a launch between phases costs 1.5, phases 45, memory 6, and of a
    rank's lateness phases pass all on and flags half. A traced twin takes a quarter longer.
    """
    config = request.config
    median = formula(Config({name: value for name, value in config.items() if name != "empty_launches"}))
    phased = bool(config.get("phased"))
    median += 45.0 * phased + 6.0 * (config.get("handover") == "memory") + 30.0 * request.isolated
    median += 1.5 * int(config.get("empty_launches", 0))
    overlaps = config["mode"] not in ("bsp", "iris_all_gather") and not phased
    median += request.late * 1e6 * (0.5 if overlaps else 1.0)
    return median * (1.25 if config.get("trace") else 1.0)


def stamps(rank: int) -> tuple[Stamped, ...]:
    """Two programs send, which takes rank r 10 + r microseconds, and 20 wait for them, then compute."""
    sending = [(0, program, 0, program, 1.0, 9.0 + rank + program) for program in range(2)]
    waiting = [(0, program, 2, 0, 2.0, 20.0) for program in range(2, 22)]
    tiles = [(0, program, 1, program - 2, 20.0, 50.0 + rank) for program in range(2, 22)]
    return (*sending, *waiting, *tiles)


def evaluation_of(config: Config, ranks: int = 2) -> Evaluation:
    seconds = {"compile": 0.5, "check": 0.1, "measure": 0.4}
    for outcome, fails in FAILURES.items():
        if fails(config):
            return Evaluation(outcome, f"rank 0: made to end as {outcome}", seconds=seconds)
    latency = latency_of(formula(config), ranks)
    return Evaluation(Outcome.MEASURED, latency=latency, error=1e-3, seconds={**seconds, "total": 1.0})


Hook = Callable[["FakeGang", Config, int, Any], Evaluation | None]
"""Called before every evaluation with its config, seed and plan; what it returns is taken for the outcome."""


def push_of(task: Task[Any]) -> Config:
    """The first push that a search for all-gather + GEMM tries."""
    first = workload("all_gather_gemm").first_configs(task)
    return next(config for config in first if config["mode"] == "push")


class FakeGang:
    """Stands in for ``Gang``. Counts its calls; may be told to be interrupted, or to measure nothing."""

    def __init__(self, problem: Problem) -> None:
        self.ranks = problem.world_size
        self.problems = [problem]
        self.restarts = 0
        self.calls: list[Config] = []
        self.started = 0
        self.closed = 0
        self.interrupt_after = math.inf
        self.broken = False
        self.host: Callable[[Config], float] | None = None
        """Host time to enqueue a config; an isolated call takes that much longer than the device's time."""
        self.drift = 1.0
        """Times as long as before that everything takes from the finals on."""
        self.overhead: HostOverhead | None = None
        self.hook: Hook = lambda gang, config, seed, plan: None
        self.traced: list[Config] = []
        self.turns: list[Turn | MeasureBarrier | Trace] = []
        self.turn_failure: Failed | None = None

    def start(self) -> None:
        self.started += 1

    def close(self) -> None:
        self.closed += 1

    def turn_to(self, workload: Workload, problem: Problem) -> None:
        self.problems.append(problem)

    def evaluate(self, config: Config, seed: int, plan: Any) -> Evaluation:
        if len(self.calls) >= self.interrupt_after:
            raise KeyboardInterrupt
        told = self.hook(self, config, seed, plan)
        self.calls.append(config)
        if told is not None:
            return told
        if self.broken:
            return Evaluation(Outcome.CRASHED, "rank 1 died in phase compile: SIGSEGV")
        found = evaluation_of(config, self.ranks)
        if found.latency is not None and self.host is not None:
            host = self.host(config)
            alone = host + found.latency.median
            found = replace(found, latency=replace(found.latency, host=host, isolated=alone if plan.isolated else None))
        if found.latency is not None and plan.isolated:
            found = replace(found, latency=replace(found.latency, median=found.latency.median * self.drift))
        self.restarts += found.outcome in (Outcome.TIMED_OUT, Outcome.CRASHED)
        return found

    def prove(self, config: Config, seed: int, latency: float) -> Evaluation | None:
        return None

    def measure_parts(self, plan: Any) -> dict[str, Latency]:
        return {name: latency_of(median, self.ranks) for name, median in LIMITS.items()}

    def measure_overhead(self) -> HostOverhead | None:
        return self.overhead

    def measure_rates(self, dtype: str) -> dict[str, float]:
        return dict(RATES)

    def trace(self, config: Config, latency: float) -> Traced | Failed:
        self.traced.append(config)
        return Traced.of(1.04, [stamps(rank) for rank in range(self.ranks)])

    def turn(self, request: Turn | MeasureBarrier | Trace) -> list[Done] | Failed:
        """A round's noise hits all turns of the round alike; see ``rung_formula`` for what a rung takes."""
        self.turns.append(request)
        if self.turn_failure is not None:
            return self.turn_failure
        if isinstance(request, MeasureBarrier):
            return [Done("", parts={"barrier": (3.5,), "empty": (2.0,)})] * self.ranks
        median = rung_formula(request) * (1 + 0.001 * math.sin(len(self.turns) // 8))
        return [Done("", times=(median - rank,) * request.calls, clock=1980.0) for rank in range(self.ranks)]


class FakeScreen:
    """Stands in for ``Screen``: compiles nothing, lets everything pass."""

    def __init__(self, workload: Workload, task: Task[Problem]) -> None:
        self.lookahead = 4

    def __enter__(self) -> FakeScreen:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def start(self) -> None:
        pass

    def turn_to(self, workload: Workload, problem: Problem) -> None:
        pass

    def submit(self, config: Config) -> None:
        return None

    def verdict(self, config: Config, future: object) -> None:
        return None


def tune_over(
    gang: Any, store: Store, found: Workload, budget: Budget, effort: Effort, machine: Machine = EIGHT_GPUS,
    **options: Any,
) -> Result:  # fmt: skip
    """The loop over a fake gang and its first problem."""
    task = Task(gang.problems[0], machine)
    return tune(found, task, store, gang, FakeScreen(found, task), budget=budget, effort=effort, **options)  # type: ignore[arg-type]


testing._get_command = functools.cache(testing._get_command)  # type: ignore[attr-defined]  # it makes a hundred commands


@functools.cache
def built(workloads: tuple[str, ...]) -> Any:
    """The app with commands for these."""
    return app.build()


@dataclass
class Bench:
    """The command, the machine it sees, and the gangs it was given, with the bytes of their heaps."""

    machine: Machine
    gangs: list[FakeGang] = field(default_factory=list)
    heaps: list[int] = field(default_factory=list)
    prepare: Callable[[FakeGang], None] = lambda gang: None
    """Called with every new gang."""
    hook: Hook = lambda gang, config, seed, plan: None

    def make_gang(self, workload: Workload, task: Task[Problem], heap_bytes: int = 0) -> FakeGang:
        gang = FakeGang(task.problem)
        gang.hook = self.hook
        self.prepare(gang)
        self.gangs.append(gang)
        self.heaps.append(heap_bytes)
        return gang

    def tune(self, *words: str) -> Ended:
        """Run ``tune`` as a new process would."""
        forget_lookups()
        return CliRunner().invoke(built(tuple(names())), list(words))

    def json(self, *words: str) -> Any:
        """The same with --json: all of stdout is one JSON value."""
        result = self.tune(*words, "--json")
        assert result.stdout, result.stderr
        return json.loads(result.stdout)


def bench_of(machine: Machine, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Bench:
    """The command on this machine, with a fake gang and a database in the folder."""
    bench = Bench(machine)
    monkeypatch.setattr(session, "machine", lambda: machine)
    monkeypatch.setattr(session, "make_gang", bench.make_gang)
    monkeypatch.setattr(session, "make_screen", FakeScreen)
    monkeypatch.setenv("AUTOTUNE_DB", str(folder / "cache.db"))
    monkeypatch.setenv("COLUMNS", "200")
    search_less(monkeypatch)
    return bench


def search_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few candidates for each proposal: how good they are is the matter of the search's own tests."""
    monkeypatch.setattr(proposer, "WALKS", 10)
    monkeypatch.setattr(proposer, "PREDICTED_DRAWS", 10)


def begun(store: Store, found: Workload, task: Task[Any], regime: str = DEFAULT_REGIME, **versions: str) -> StudyRecord:
    """A study of a problem, by today's sources and versions beside those given."""
    provenance = replace(provenance_of(found), **versions)
    return store.study(CacheKey.of(task, regime), provenance, seed=0, space_size=1000)


def far_lease() -> Lease:
    """The lease of a process on another host, whose heartbeat alone says that it lives."""
    return replace(Lease.new(), host="far", system="another boot")
