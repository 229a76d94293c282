"""The gang over ranks that are threads and reply as the test says: verdicts, restarts, other problems."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest
from fakes import LAPTOP

from autotune.config import Config
from autotune.errors import GangError, RanksDisagree
from autotune.outcome import Outcome
from autotune.ranks import gang as gang_module
from autotune.ranks.evaluation import MeasurePlan
from autotune.ranks.gang import Gang
from autotune.ranks.protocol import (
    Bug,
    Check,
    Done,
    Failed,
    Measure,
    MeasureBarrier,
    Open,
    Reply,
    Request,
    SetUp,
    Trace,
    Turn,
)
from autotune.task import Task
from autotune.timeline import Traced
from autotune.workloads import workload
from autotune.workloads.provenance import Code

FOUND = workload("all_gather_gemm")
PROBLEM = FOUND.problem_type(m=32, n=64, k=64, world_size=2)
CONFIG = Config({"mode": "bsp", "launch": "eager"})


DIES = "dies"
SILENT = None

STAMPED = Done("", events=((0, 0, 1, 0, 1.0, 2.0),))

Answer = Callable[[Request, int], Reply | str | None]


class FakeRank:
    pid = 0
    code: int | None = None

    def __init__(self, connection: Connection, rank: int, answer: Answer) -> None:
        self._connection, self._rank, self._answer = Connection(os.dup(connection.fileno())), rank, answer
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                request = self._connection.recv()
            except (EOFError, OSError):
                break
            reply = self._answer(request, self._rank)
            if reply == DIES:
                self.code = -9
                break
            if reply is not SILENT:
                self._connection.send(reply)
        self._connection.close()

    def poll(self) -> int | None:
        return self.code

    def wait(self, timeout: float | None = None) -> int:
        return self.code or 0


@dataclasses.dataclass
class Script:
    check: list[Reply | str | None] = dataclasses.field(default_factory=lambda: [Done(""), Done("")])
    trace: list[Reply | str | None] = dataclasses.field(default_factory=lambda: [STAMPED, STAMPED])
    fingerprints: bool = False
    asked: list[Request] = dataclasses.field(default_factory=list)
    ranks: list[FakeRank] = dataclasses.field(default_factory=list)

    def __call__(self, request: Request, rank: int) -> Reply | str | None:
        if rank == 0:
            self.asked.append(request)
        if isinstance(request, Open):
            return Done("", seconds={"imports": 0.0})
        if isinstance(request, SetUp):
            return Done("", code=Code.here(FOUND))
        if isinstance(request, Trace):
            return self.trace[rank]
        if isinstance(request, Turn):
            return Done("", times=(1.0,) * request.calls)
        if isinstance(request, Check):
            return Done(f"config {rank}") if self.fingerprints else self.check[rank]
        return Done("", times=(1.0,) * request.iterations) if isinstance(request, Measure) else Done("")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    made = Script()

    def start(module: str, connection: Connection, **_: Any) -> FakeRank:
        made.ranks.append(FakeRank(connection, len(made.ranks) % 2, made))
        return made.ranks[-1]

    monkeypatch.setattr(gang_module, "start_python", start)
    monkeypatch.setattr(gang_module, "kill_all", lambda processes: None)
    monkeypatch.setattr(gang_module, "GRACE", 0.2)
    yield made


def new_gang(heap_bytes: int = 0) -> Gang:
    return Gang(FOUND, Task(PROBLEM, LAPTOP), heap_bytes, deadlines={"check": 0.5, "trace": 0.5})


OUT, LATE = Failed(Outcome.OUT_OF_RESOURCES, "no memory"), Failed(Outcome.TIMED_OUT, "timed out")
BROKEN = Failed(Outcome.CRASHED, "CUDA error", broken=True)


@pytest.mark.parametrize(
    ("check", "outcome", "reason", "restarts"),
    [
        ([Done(""), OUT], Outcome.OUT_OF_RESOURCES, "rank 1: no memory", 0),
        ([SILENT, OUT], Outcome.OUT_OF_RESOURCES, "rank 1: no memory", 1),
        ([LATE, BROKEN], Outcome.TIMED_OUT, "rank 0: timed out", 1),
        ([Bug("connection closed by peer"), DIES], Outcome.CRASHED, "rank 1 died in phase check: SIGKILL", 1),
        ([SILENT, SILENT], Outcome.TIMED_OUT, "no answer from rank 0, 1 in phase check", 1),
    ],
    ids=["failed", "failed, the other silent", "one is broken", "died, the other is no bug", "silent"],
)
def test_one_verdict_stands_for_all_ranks(
    script: Script, check: list[Any], outcome: Outcome, reason: str, restarts: int
) -> None:
    script.check = check
    with new_gang() as gang:
        found = gang.evaluate(CONFIG, 1, MeasurePlan())
    assert (found.outcome, gang.restarts) == (outcome, restarts) and found.reason.startswith(reason)


def test_a_bug_or_ranks_that_work_on_different_things_stop_the_run(script: Script) -> None:
    script.check = [Done(""), Bug("Traceback: planted")]
    with new_gang() as gang, pytest.raises(GangError, match="rank 1 .*\nTraceback: planted"):
        gang.evaluate(CONFIG, 1, MeasurePlan())
    script.fingerprints = True
    with new_gang() as gang, pytest.raises(RanksDisagree, match="rank 0: config 0; rank 1: config 1"):
        gang.evaluate(CONFIG, 1, MeasurePlan())


def test_ranks_that_always_break_are_not_restarted_for_ever_and_a_measured_config_forgives(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang_module, "MOST_RESTARTS", 2)
    with new_gang() as gang:
        for breaks in (True, True, False, True, True):
            script.check = [BROKEN if breaks else Done(""), Done("")]
            outcome = gang.evaluate(CONFIG, 1, MeasurePlan()).outcome
            assert outcome is (Outcome.CRASHED if breaks else Outcome.MEASURED)
        assert gang.restarts == 4
        with pytest.raises(GangError, match="tune doctor"):
            gang.evaluate(CONFIG, 1, MeasurePlan())


def test_ranks_that_have_died_are_started_again_for_all_that_is_asked(script: Script) -> None:
    with new_gang() as gang:
        asks: list[Callable[[], object]] = [
            lambda: gang.evaluate(CONFIG, 1, MeasurePlan()), lambda: gang.prove(CONFIG, 1, 100.0),
            lambda: gang.turn(MeasureBarrier(1, 1)),
        ]  # fmt: skip
        for number, ask in enumerate(asks, 1):
            script.ranks[-1].code = -9
            ask()
            assert gang.restarts == number


@pytest.mark.parametrize("replies", [[STAMPED, DIES], [SILENT, STAMPED], [STAMPED, BROKEN]])
def test_ranks_that_break_while_traced_end_and_start_again_with_the_next_problem(
    script: Script, replies: list[Any]
) -> None:
    with new_gang() as gang:
        assert isinstance(gang.trace(CONFIG, 100.0), Traced)
        script.trace = replies
        assert isinstance(gang.trace(CONFIG, 100.0), Failed)
        script.asked.clear()
        assert isinstance(gang.trace(CONFIG, 100.0), Failed), "nobody is there"
        assert gang.restarts == 0 and not script.asked
        gang.turn_to(FOUND, PROBLEM)
        gang.start()
        assert gang.evaluate(CONFIG, 1, MeasurePlan()).outcome is Outcome.MEASURED and gang.restarts == 0


@pytest.mark.parametrize(
    ("world_size", "needed", "stay"), [(2, 1 << 20, True), (2, 1 << 21, True), (2, 1 << 22, False), (4, 1, False)]
)
def test_ranks_stay_for_a_problem_of_their_number_that_their_heap_holds(
    script: Script, monkeypatch: pytest.MonkeyPatch, world_size: int, needed: int, stay: bool
) -> None:
    monkeypatch.setattr(type(FOUND), "heap_bytes", lambda self, problem: 1)
    with new_gang(1 << 21) as gang:
        monkeypatch.setattr(type(FOUND), "heap_bytes", lambda self, problem: needed)
        script.asked.clear()
        problem = dataclasses.replace(PROBLEM, world_size=world_size)
        gang.turn_to(FOUND, problem)
        assert gang.problem is problem and [type(each) for each in script.asked] == [SetUp] * stay
        gang.start()
        opened = {each.heap_bytes for each in script.asked if isinstance(each, Open)}
        assert opened == (set() if stay else {max(needed, 1 << 21)})
