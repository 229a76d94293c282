"""Faults of every kind, in every phase, on interpreted ranks: the outcome they end in, and a gang as good as new.

All of them, some minutes: ``pytest -m slow tests/ranks/faults``.
"""

from __future__ import annotations

import dataclasses
import itertools
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_matrix import ENDS, FILE, GOOD, ONCE, Case, Sniper, gang_of_victims, survive
from faulty_workload import EVERY_RANK, FAULT_AT_START
from process_ends import gone

from autotune.errors import GangError
from autotune.machine import machine
from autotune.outcome import Outcome
from autotune.ranks import gang as gang_module
from autotune.ranks.gang import Gang
from autotune.task import Task
from autotune.workloads import workload

pytestmark = pytest.mark.skipif(not machine().is_interpreter, reason="see test_on_gpus.py")

SOME = [
    Case("is killed", "check"),
    Case("hangs on the host", "check", victim=0),
    Case("raises", "check"),
    Case("loses its device", "check"),
    Case("exhausts the heap", "check", victim=0),
    Case("exhausts the host", "check", EVERY_RANK),
    Case("does not compile", "check", EVERY_RANK),
    Case("spoils the output", "check"),
    Case("leaves NaN", "check", victim=0),
    Case("hangs in a kernel", "measure"),
    Case("times out", "measure"),
    Case("corrupts memory", "measure", victim=0),
    Case("is killed", "recheck", victim=0),
    Case("spoils the output", "recheck"),
]

FAULTS = [fault for fault in ENDS if fault not in ("is stopped", "exhausts the device")]
ALL = [Case(*each) for each in itertools.product(FAULTS, ["check", "measure", "recheck"], [0, 1, EVERY_RANK])]


@pytest.fixture(scope="module")
def gang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sniper]:
    with gang_of_victims(tmp_path_factory.mktemp("temporary"), 2, grace=1.0, m=32, n=64, k=64) as started:
        yield started


@pytest.fixture(autouse=True)
def known_to_new_ranks(gang: Gang, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test starts without our settings; ranks that are started again inherit this one."""
    monkeypatch.setenv("AUTOTUNE_WORKLOADS", str(FILE))


@pytest.mark.parametrize("case", SOME, ids=str)
def test_the_gang_survives(gang: Sniper, case: Case) -> None:
    survive(gang, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in ALL if case not in SOME], ids=str)
def test_the_gang_survives_all_others(gang: Sniper, case: Case) -> None:
    survive(gang, case)


@pytest.mark.parametrize(
    ("fault", "how", "phase"),
    [
        ("is killed", signal.SIGKILL, "compile"),
        ("is stopped", signal.SIGSTOP, "measure"),
        pytest.param("is killed", signal.SIGKILL, "measure", marks=pytest.mark.slow),
        pytest.param("is stopped", signal.SIGSTOP, "compile", marks=pytest.mark.slow),
    ],
)
def test_the_gang_survives_signals_from_outside(gang: Sniper, fault: str, how: signal.Signals, phase: str) -> None:
    gang.target = (phase, 0, how)
    survive(gang, Case(fault, phase, victim=0))


def test_what_a_rank_started_dies_with_it(gang: Sniper) -> None:
    children: list[int] = []

    def remember(rank: int) -> Path:
        log = Gang._log(gang, rank)
        if log.exists():
            children.extend(int(line.split()[1]) for line in log.read_text().splitlines() if line.startswith("child "))
        return log

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gang, "_log", remember)  # the new rank's log takes the old one's place
        survive(gang, Case("hangs with a child", "check"))
    assert children and all(gone(pid, within=300) for pid in children)


@pytest.mark.parametrize("fault", [None, "loses the bias", "loses the last of K"])
def test_what_little_is_lost_of_a_product_as_deep_as_those_that_are_tuned_is_seen(
    gang: Sniper, fault: str | None
) -> None:
    gang.turn_to(gang.workload, dataclasses.replace(gang.problem, k=28672, bias=True))
    gang.start()
    config = GOOD if fault is None else Case(fault, "check", EVERY_RANK).config
    ended = gang.evaluate(config, 3, ONCE)
    assert ended.outcome is (Outcome.MEASURED if fault is None else Outcome.WRONG_RESULT), ended


QUICK = ["is killed", "exhausts the host"]
AT_START = {
    "is killed": "rank 1 died in phase start: SIGKILL",
    "hangs on the host": "no answer from rank 1 in phase start within 60 s",
    "raises": r"rank 1 raised an unexpected error \(phase start\)(?s:.*)ZeroDivisionError: planted",
    "exhausts the heap": "the ranks did not start: rank 1: HeapExhausted: symmetric heap: .* bytes requested",
    "exhausts the host": "the ranks did not start: rank 1: .*can't allocate memory",
}


@pytest.mark.parametrize(
    "fault", [fault if fault in QUICK else pytest.param(fault, marks=pytest.mark.slow) for fault in AT_START]
)
def test_ranks_that_fail_at_the_start_stop_the_run(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FAULT_AT_START, f"{fault}, 1")
    monkeypatch.setattr(gang_module, "GRACE", 1.0)
    found = workload("faulty")
    problem = found.problem_type(m=32, n=64, k=64, world_size=2)
    start = 60.0 if fault == "hangs on the host" else 900.0
    gang = Gang(found, Task(problem, machine()), deadlines={"start": start})
    with pytest.raises(GangError, match=AT_START[fault]):
        gang.start()
    assert gang._processes == []
