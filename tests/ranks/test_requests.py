"""A rank's answer to each request: the calls that it times, their inputs, and its reply. Starts no process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import autotune
from autotune.config import Config
from autotune.errors import InputError, MissedBarrier
from autotune.machine import H100
from autotune.outcome import Outcome
from autotune.ranks import bursts
from autotune.ranks.protocol import (
    Check,
    Done,
    Failed,
    Measure,
    MeasureIsolated,
    MeasureOverhead,
    Recheck,
    SetUp,
    Trace,
    Turn,
)
from autotune.ranks.rank import Rank
from autotune.workloads.provenance import Code
from autotune.workloads.tolerance import Error

NAN = float("nan")
ONE, OTHER = Config({"tile": 1}), Config({"tile": 2})
SMALL = autotune.GemmAllReduce(m=16, n=32, k=64, world_size=2)


class Bench:
    """A heap, a workload and its operation, and a stopwatch, which note what is asked of them, in order."""

    rank, name, problem_type = 1, "spied", autotune.GemmAllReduce

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.late = False
        self.refuses: Exception | None = None
        self.errors = [Error(0.1, 0.2)]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments: self.asked.append((name, *arguments))

    def mark(self) -> str:
        return "nothing"

    def operation(self, *_: Any) -> Bench:
        return self

    def prepare(self, config: Config) -> Callable[[], None]:
        if self.refuses is not None:
            raise self.refuses
        self.asked.append(("prepare", config))
        return lambda: self.asked.append(("run", config))

    def error(self) -> Error:
        return self.errors[0]

    def timed_out(self) -> bool:
        return self.late

    def time(self, run: Callable[[], None], *, warmup: int, iterations: int) -> Any:
        run()
        self.asked.append((warmup, iterations))
        return SimpleNamespace(device=[1.0] * iterations, host=[0.5])

    def time_isolated(self, run: Callable[[], None], calls: int) -> list[float]:
        run()
        return [7.0] * calls

    def delayed(self, run: Callable[[], None], seconds: float) -> Callable[[], None]:
        self.asked.append(("late", seconds))
        return run

    def clock(self) -> float:
        return 1500.0

    def trace_operations(self, run: Callable[[], None]) -> tuple[Any, ...]:
        run()
        return ((0, 0, 0, 0, 1.0, 2.0),)


class Alone(Rank):
    def __init__(self, bench: Bench, machine: Any = H100) -> None:
        self._heap: Any = bench
        self._stopwatch: Any = bench
        self._machine, self._spin_limit, self._empty = machine, 1, bench.mark()
        self._config, self._prepared, self._batch = None, 0, None
        assert isinstance(self.answer(SetUp("spied", SMALL.as_dict())), Done)
        bench.asked.clear()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    made = Bench()
    monkeypatch.setattr("autotune.workloads.workload", {"spied": made}.__getitem__)
    monkeypatch.setattr(Code, "here", lambda _: None)
    yield made


def done(rank: Rank, request: Any) -> Done:
    reply = rank.answer(request)
    assert isinstance(reply, Done), reply
    return reply


@pytest.mark.parametrize(("second", "worst"), [(Error(0.3, 0.1), (0.3, 0.2)), (Error(NAN, 0.1), (NAN, 0.2))])
def test_of_many_calls_the_worst_error_counts_and_no_number_is_worse_than_any(
    bench: Bench, second: Error, worst: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Bursts:
        def __init__(self, *given: Any) -> None:
            bench.asked.append(given[4:])

        def errors(self, count: int, calls: int) -> list[Error]:
            bench.asked.append((count, calls))
            return [bench.errors[0], second, Error(0.05, 0.05)]

    monkeypatch.setattr(bursts, "Bursts", Bursts)
    found = done(Alone(bench), Recheck(seed=3, stagger=0.5, pause=0.25, bursts=4, calls=2))
    assert (found.overall, found.element) == pytest.approx(worst, nan_ok=True)
    assert bench.asked == [("input_sets", 3), (3, 0.5, 0.25), (4, 2)]


def test_a_turn_prepares_what_was_not_the_last_and_only_the_late_rank_is_late(bench: Bench) -> None:
    rank = Alone(bench)
    turn = done(rank, Turn(ONE, warmup=1, calls=2))
    assert (turn.times, turn.clock) == ((1.0, 1.0), 1500.0)
    assert bench.asked == [("refresh", 0), ("barrier",), ("prepare", ONE), ("run", ONE), (1, 2)]
    for late_rank, late in ((0, []), (1, [("late", 0.5)])):
        bench.asked.clear()
        done(rank, Turn(ONE, 1, 2, late_rank=late_rank, late=0.5))
        assert bench.asked == [*late, ("run", ONE), (1, 2)]
    bench.asked.clear()
    assert done(rank, Turn(OTHER, 1, 2, isolated=True)).times == (7.0, 7.0)
    assert bench.asked == [("prepare", OTHER), ("run", OTHER)]


@pytest.mark.parametrize("request_", [Check(ONE, 0), Measure(0, 1), MeasureIsolated(1), Turn(ONE, 0, 1), Trace()])
def test_a_wait_that_timed_out_is_no_measurement(bench: Bench, request_: Any) -> None:
    rank = Alone(bench)
    bench.late = True
    reply = rank.answer(request_)
    assert isinstance(reply, Failed) and reply.outcome is Outcome.TIMED_OUT and "timed out" in reply.reason


NO_MEMORY, CRASHED = (Outcome.OUT_OF_RESOURCES, False), (Outcome.CRASHED, True)


@pytest.mark.parametrize(
    ("error", "reason", "how"),
    [
        (torch.OutOfMemoryError("CUDA out of memory.\nTried"), "OutOfMemoryError: CUDA out of memory.", NO_MEMORY),
        (MemoryError(), "MemoryError: ", NO_MEMORY),
        (MissedBarrier("a rank missed it"), "a rank missed it", (Outcome.TIMED_OUT, False)),
        (RuntimeError("[enforce] can't allocate memory"), "RuntimeError: [enforce] can't allocate memory", NO_MEMORY),
        (RuntimeError("CUDA error: illegal\nFor debugging"), "RuntimeError: CUDA error: illegal", CRASHED),
        (RuntimeError("HIP error: illegal"), "RuntimeError: HIP error: illegal", CRASHED),
        (RuntimeError("HIP " + "x" * 999), "RuntimeError: HIP " + "x" * (300 - 18), CRASHED),
    ],
    ids=["device memory", "memory", "missed barrier", "host memory", "CUDA", "HIP", "long"],
)
def test_a_configs_failure_is_an_outcome_in_a_line(
    bench: Bench, error: Exception, reason: str, how: tuple[Outcome, bool]
) -> None:
    rank = Alone(bench)
    bench.refuses = error
    found = rank.answer(Check(ONE, 0))
    assert isinstance(found, Failed) and (found.reason, (found.outcome, found.broken)) == (reason, how)


@pytest.mark.parametrize("error", [InputError("no such call"), NotImplementedError()])
def test_a_door_that_a_users_workload_does_not_have_has_no_price(
    bench: Bench, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spy(*_: Any) -> None:
        raise error

    monkeypatch.setattr("overhead_spy.spy", spy)
    assert done(Alone(bench), MeasureOverhead("overhead_spy:spy", 3)).times == ()
