"""A rank's answers to requests, its bursts and marks: what it runs, in which order, late or held. Starts no process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from triton import knobs
from triton.compiler.compiler import LazyDict

import autotune
from autotune.config import Config
from autotune.errors import InputError, MissedBarrier
from autotune.machine import H100
from autotune.outcome import Outcome
from autotune.ranks import bursts as bursts_module
from autotune.ranks.bursts import CROWDED, HEAD_START, HELD, ROOM, Bursts
from autotune.ranks.marks import Marks
from autotune.ranks.measure import SLOWEST_CLOCK_GHZ
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
from autotune.timeline import BARRIER, CALL, COLLECTIVE, COPY, GEMM
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

    monkeypatch.setattr(bursts_module, "Bursts", Bursts)
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


PAUSE = 0.5


class Told:
    """Stands in for a rank's heap, operation and inputs, and notes what happens."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.count = 3
        self._output = torch.zeros(2)

    def outputs(self) -> list[torch.Tensor]:
        return [self._output]

    def put(self, number: int) -> None:
        self.events.append(f"put {number}")

    def error_of(self, outputs: list[torch.Tensor], number: int) -> Error:
        self.events.append(f"compare {number}")
        return Error(float(outputs[0][0]), 0.0)

    def barrier(self) -> None:
        self.events.append("barrier")

    def run(self) -> None:
        assert self._output.isnan().all(), "what a call does not write is seen"
        self.events.append("run")
        self._output.fill_(len(self.events))

    @contextlib.contextmanager
    def held(self, seconds: float) -> Iterator[None]:
        self.events.append(f"held {seconds}")
        yield

    def sleep(self, seconds: float) -> None:
        self.events.append(f"sleep {seconds}")


def burst_events(
    monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int, count: int = 3, device: str = "cpu"
) -> list[list[str]]:
    told: Any = Told()
    monkeypatch.setattr(bursts_module, "first_poll_held", told.held)
    monkeypatch.setattr(bursts_module, "time", told)
    monkeypatch.setattr(bursts_module, "_slowed", contextlib.nullcontext)
    place = SimpleNamespace(type=device)
    heap: Any = SimpleNamespace(rank=rank, world_size=world_size, device=place, barrier=told.barrier)
    if device == "cuda":
        simulate_gpu(monkeypatch, told)
    bursts = Bursts(heap, told, told.run, told, seed=1, stagger=0.25, pause=PAUSE)
    found = []
    errors = bursts.errors(count, 2)
    for number in range(count):
        told.events.clear()
        overall = [next(errors).overall for _ in range(2)]
        assert overall[0] < overall[1]  # each call's own output is compared
        numbers = [(2 * number + call) % told.count for call in range(2)]
        compared = [f"compare {each}" for each in numbers]
        assert [each for each in told.events if each.startswith("put")] == [f"put {each}" for each in numbers]
        assert told.events[0] == "barrier" and told.events[-3:] == ["barrier", *compared]
        found.append([each.split()[0] if each.startswith("put") else each for each in told.events[1:-3]])
    assert not list(errors) and told.events[-1] == f"put {told.count - 1}", "whose times count"
    return found


def simulate_gpu(monkeypatch: pytest.MonkeyPatch, told: Told) -> None:

    class Crowd:
        def __init__(self, kernel: Any, programs: int, arguments: dict[str, int], options: dict[str, int]) -> None:
            self.told = f"crowd of {programs} for {arguments['nanoseconds'] / 1e9}"

        def run(self) -> None:
            told.events.append(self.told)

    properties = SimpleNamespace(multi_processor_count=100, warp_size=32)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "main")
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: told.sleep(cycles / SLOWEST_CLOCK_GHZ / 1e9))
    monkeypatch.setattr(bursts_module, "Launch", Crowd)
    monkeypatch.setattr(bursts_module, "side_stream", lambda heap, name: "beside")
    monkeypatch.setattr(bursts_module, "wait", lambda streams, others: None)
    monkeypatch.setattr(bursts_module, "on", lambda stream: contextlib.nullcontext())


FREE = ["put", "run", "put", "run"]
LATE = ["put", f"sleep {PAUSE}", f"held {HELD * PAUSE}", "run", "put", f"sleep {PAUSE}", "run"]


def test_each_interpreted_rank_is_late_in_its_turn_and_is_held_once_a_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    for rank, turn in ((1, 0), (2, 1), (0, 2)):
        events = burst_events(monkeypatch, rank, 3, count=9)
        assert events[0] == [f"sleep {0.25 * ((rank + 1) % 3)}", *FREE]
        assert events[1::3] == [LATE if number == turn else FREE for number in range(3)]
        assert events[2::3] == [FREE if number == turn else LATE for number in range(3)]


def test_a_rank_of_a_gpu_is_crowded_in_a_fourth_kind_of_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    late = ["put", f"sleep {PAUSE}", "run"] * 2
    full, half = (f"crowd of {programs} for {CROWDED * PAUSE}" for programs in (200 - ROOM, 100))
    there = f"sleep {HEAD_START}"
    crowded = ["put", full, there, "run", "put", half, there, "run"]
    for rank, kinds in {0: [FREE, late, FREE], 1: [late, FREE, crowded]}.items():
        assert burst_events(monkeypatch, rank, 2, count=4, device="cuda")[1:] == kinds


A = torch.ones(4, 4)


def launch(name: str) -> None:
    launched = LazyDict({"name": name})
    knobs.runtime.launch_enter_hook(launched)
    knobs.runtime.launch_exit_hook(launched)


def marked(*calls: Any) -> list[int]:
    marks = Marks(torch.device("cpu"))
    begin = marks.now()
    with marks:
        for call in calls:
            launch(call) if isinstance(call, str) else call()
    launch("gather_kernel")  # behind the call: not its own
    events = marks.events(begin, marks.now())
    assert all(0 <= start <= end for *_, start, end in events)
    return [kind for _, _, kind, *_ in events]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gather_words_kernel", COLLECTIVE), ("all_reduce_kernel", COLLECTIVE), ("pull_sum_kernel", COLLECTIVE),
        ("dispatch_kernel", COLLECTIVE), ("combine_kernel", COLLECTIVE), ("grouped_gemm_kernel", GEMM),
        ("wait_for_chunk_kernel", BARRIER), ("barrier_kernel", BARRIER),
    ],
)  # fmt: skip
def test_our_kernels_are_marked_by_what_they_do(name: str, kind: int) -> None:
    assert marked(name, lambda: A @ A, lambda: A.copy_(A)) == [CALL, kind, GEMM, COPY]


def test_of_what_nobody_knows_there_is_no_timeline() -> None:
    assert marked("somebodys_kernel", lambda: A + A) == []
