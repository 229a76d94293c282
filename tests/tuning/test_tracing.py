"""The calls that are traced after a search: what is stored, and what a failure of theirs leaves whole."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from every_mode import RANKS, on_cpu
from fakes import EIGHT_GPUS, FakeGang, FakeScreen, stamps, tune_over
from small_space import BEST, Ranks, run

from autotune.db import Store
from autotune.errors import GangError, StoreError
from autotune.machine import machine
from autotune.outcome import Outcome
from autotune.ranks.protocol import Failed
from autotune.task import Task
from autotune.timeline import CALL, COLLECTIVE, COPY, GEMM, SENDS, TILE, WAITS, Timeline, Traced, from_json
from autotune.tuning import Budget, Effort
from autotune.tuning.tracing import Tracer
from autotune.workloads import workload

TRACED = Traced.of(1.04, [stamps(rank) for rank in range(2)]).sampled()


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_TRACE", "1")


def stored(path: Path) -> Timeline | None:
    with Store.open(path) as store:
        text = store.attached(1, "timeline")
    return None if text is None else from_json(text)


@pytest.mark.usefixtures("traced")
def test_the_library_and_the_winner_are_traced_after_the_result_is_stored(path: Path) -> None:
    def call() -> Traced:
        with Store.open(path) as store:
            assert store.studies()[0].state == "finished"
        return TRACED

    ranks = Ranks(traced=call)
    result = run(path, ranks, trials=30)
    assert result.entry is not None and result.entry.winner.config == BEST
    assert stored(path) == {"bsp": TRACED, "push": TRACED} and ranks.log[-2:] == ["trace", "trace"]


def test_calls_under_the_interpreter_are_traced_where_that_is_asked_for(path: Path) -> None:
    ranks = Ranks()
    assert run(path, ranks).entry is not None
    assert stored(path) is None and "trace" not in ranks.log


@pytest.mark.parametrize(("asked", "calls"), [("", 2), ("0", 0)])
def test_calls_on_gpus_are_traced_by_default(
    path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, calls: int
) -> None:
    monkeypatch.setenv("AUTOTUNE_TRACE", asked)
    found = workload("all_gather_gemm")
    gang = FakeGang(found.default_problem(EIGHT_GPUS, 8))
    effort = Effort(trials=9, screen=3, iterations=3, finalists=2, rounds=1)
    with Store.open(path) as store:
        for search in (True, False):
            tune_over(gang, store, found, Budget(9), effort, force=True, search=search)
            assert len(gang.traced) == calls, "one that is only verified is not traced"


def raising(error: type[BaseException]) -> Callable[[], Traced]:
    def call() -> Traced:
        raise error("planted")

    return call


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("call", [raising(GangError), lambda: Failed(Outcome.TIMED_OUT, "planted")])
def test_a_call_that_fails_leaves_the_result_whole(path: Path, call: Callable[[], Traced | Failed]) -> None:
    result = run(path, Ranks(traced=call))
    assert result.entry is not None and not result.interrupted and stored(path) is None


@pytest.mark.usefixtures("traced")
def test_a_timeline_that_cannot_be_stored_leaves_the_result_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise StoreError("planted")

    monkeypatch.setattr(Store, "attach", refuse)
    result = run(path, Ranks(traced=lambda: TRACED))
    assert result.entry is not None and stored(path) is None


@pytest.mark.usefixtures("traced")
def test_an_interrupted_call_ends_the_run_with_its_result(path: Path) -> None:
    ranks = Ranks(traced=raising(KeyboardInterrupt))
    result = run(path, ranks)
    assert result.interrupted and result.entry is not None and ranks.log[-1] == "close"
    again = Ranks()
    assert run(path, again).from_cache and not again.calls


@pytest.mark.usefixtures("traced")
def test_a_twin_that_is_not_compiled_in_time_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    found = workload("all_gather_gemm")
    problem = found.default_problem(EIGHT_GPUS, 8)
    task = Task(problem, EIGHT_GPUS)
    config = next(each for each in found.first_configs(task) if each["mode"] == "push")
    gang: Any = FakeGang(problem)
    screen: Any = FakeScreen(found, task)
    compiling: Future[Any] = Future()
    monkeypatch.setattr(screen, "submit", lambda twin: compiling if twin["trace"] else None)
    tracer = Tracer(found, task, gang, screen)
    tracer.seconds = 0.02
    tracer.compile(config)
    assert tracer.timeline({"push": (config, 100.0)}) == {} and not gang.traced
    compiling.set_result(None)
    assert set(tracer.timeline({"push": (config, 100.0)})) == {"push"}


SEEN = {
    "push": {SENDS, TILE, WAITS},
    "copy_engine": {COPY, GEMM, CALL},
    "custom_collective": {CALL, GEMM},
    "pull": None,
}


def test_each_mode_shows_what_can_be_seen_of_it() -> None:
    on_cpu()
    found = workload("all_gather_gemm")
    problem = found.problem_type(m=128, n=128, k=128, world_size=2)
    gang, _ = RANKS.turn_to(found, problem)
    modes = {each["mode"]: each for each in found.first_configs(Task(problem, machine()))}
    for mode, kinds in SEEN.items():
        traced = gang.trace(modes[mode], 1000.0)
        if kinds is None:
            assert isinstance(traced, Failed), "its kernels leave no stamps"
        else:
            assert isinstance(traced, Traced)
            assert all({event.kind for event in rank} <= kinds for rank in traced.ranks)
            assert {event.kind for event in traced.ranks[0]} >= kinds


@pytest.mark.gpu(2)
def test_the_library_is_marked_on_gpus() -> None:
    found = workload("all_gather_gemm")
    problem = found.problem_type(m=1024, n=4096, k=4096, world_size=2)
    gang, _ = RANKS.turn_to(found, problem)
    traced = gang.trace(found.baselines(Task(problem, machine()))["bsp eager"], 100.0)
    assert isinstance(traced, Traced), traced
    assert 0.5 < traced.slowdown < 3
    for rank in traced.ranks:
        [gathered] = [event for event in rank if event.kind == COLLECTIVE]
        [multiplied] = [event for event in rank if event.kind == GEMM]
        assert 0 <= gathered.begin < gathered.end <= multiplied.begin < multiplied.end <= traced.end < 10e3
