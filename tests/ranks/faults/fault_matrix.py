"""The matrix of faults: how an evaluation ends with each, and a trial that shows the gang to be as good as new."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from every_mode import ONCE
from faulty_workload import EVERY_RANK
from process_ends import gone, left_in_shared_memory, shared_memory

from autotune.config import Config
from autotune.errors import GangError
from autotune.machine import machine
from autotune.outcome import Outcome
from autotune.ranks import evaluation
from autotune.ranks import gang as gang_module
from autotune.ranks.evaluation import RESTART
from autotune.ranks.gang import Gang
from autotune.task import Task
from autotune.workloads import workload

FILE = Path(__file__).parent / "faulty_workload.py"
GOOD = Config({"mode": "bsp", "launch": "eager"})
"""The quickest of all; what is tested is not the kernels."""

LONGEST_RESTART = 600.0
"""Seconds that a restart may take once the deadline has passed; on a quiet machine it takes one."""

LATE = 300.0
"""Seconds by which an oversubscribed machine may be late in seeing that a deadline has passed."""

PHASES = ("compile", "check", "measure")
PATIENT = 120.0

SILENT = "no answer from rank .* in phase {phase} within"
DIED = "rank {rank} died in phase {phase}: "
NO_MEMORY = "rank {rank}: .*(can't allocate|out of memory)"
WRONG = "rank .: error "

ENDS: dict[str, tuple[Outcome | None, str]] = {
    "is killed": (Outcome.CRASHED, DIED + "SIGKILL"),
    "exits": (Outcome.CRASHED, DIED + "exit code 3; last words"),
    "hangs on the host": (Outcome.TIMED_OUT, SILENT),
    "hangs in a kernel": (Outcome.TIMED_OUT, SILENT),
    "hangs with a child": (Outcome.TIMED_OUT, SILENT),
    "is stopped": (Outcome.TIMED_OUT, SILENT),
    "raises": (None, r"rank {rank} raised an unexpected error \(phase {phase}\)(?s:.*)ZeroDivisionError: planted"),
    "does not compile": (Outcome.DID_NOT_COMPILE, "rank {rank}: planted: ptxas said no"),
    "exhausts the heap": (Outcome.OUT_OF_RESOURCES, "rank {rank}: HeapExhausted: symmetric heap: .* bytes requested"),
    "exhausts the host": (Outcome.OUT_OF_RESOURCES, NO_MEMORY),
    "exhausts the device": (Outcome.OUT_OF_RESOURCES, NO_MEMORY),
    "loses its device": (Outcome.CRASHED, "rank {rank}: .*illegal memory access"),
    "spoils the output": (Outcome.WRONG_RESULT, WRONG),
    "leaves NaN": (Outcome.WRONG_RESULT, "rank {rank}: error nan"),
    "corrupts memory": (Outcome.WRONG_RESULT, WRONG),
    "times out": (Outcome.TIMED_OUT, "rank {rank}: a wait in the kernel timed out"),
}


@dataclass(frozen=True)
class Case:
    fault: str
    phase: str
    victim: int = 1

    def __str__(self) -> str:
        who = "every rank" if self.victim == EVERY_RANK else f"rank {self.victim}"
        return f"{who} {self.fault} in {self.phase}"

    @property
    def config(self) -> Config:
        return GOOD.replace(fault=self.fault, phase=self.phase, victim=self.victim)

    @property
    def named_phase(self) -> str:
        return "check" if self.phase == "recheck" else self.phase

    @property
    def reason(self) -> str:
        outcome, reason = ENDS[self.fault]
        rank = "." if self.victim == EVERY_RANK else str(self.victim)
        told = reason.replace("{rank}", rank).replace("{phase}", self.named_phase)
        # Memory is spoilt after the output has been written: the check is the last to see nothing of it.
        late = outcome is Outcome.WRONG_RESULT and (self.phase != "check" or self.fault == "corrupts memory")
        return "calls back to back, inputs changing, ranks apart: " + told if late else told


class Sniper(Gang):
    """A gang whose driver strikes a rank with a signal as a phase begins: for phases that no workload has a hand in."""

    target: tuple[str, int, signal.Signals] | None = None
    least_deadline = 1.5 if machine().is_interpreter else 5.0
    """Seconds for a phase in which a rank is to hang; more where a good config's phases show the machine to be slow."""

    def allow(self, fault: str) -> None:
        self._deadlines = {**self._deadlines, **dict.fromkeys(PHASES, PATIENT)}
        if ENDS[fault][1] == SILENT:
            good = self.evaluate(GOOD, 6, ONCE)
            assert good.outcome is Outcome.MEASURED, good
            short = self.least_deadline + 10 * max(good.seconds[phase] for phase in PHASES)
            self._deadlines |= dict.fromkeys(PHASES, short)

    def _ask(self, requests: Any, phase: str) -> Any:
        if self.target is not None and self.target[0] == phase:
            _, rank, how = self.target
            self.target = None
            os.kill(self._processes[rank].pid, how)
        return super()._ask(requests, phase)


@contextmanager
def gang_of_victims(place: Path, world_size: int, grace: float, **dimensions: int) -> Iterator[Sniper]:
    """Deadlines are short where one is waited out. Nothing is left of the ranks, in memory or in ``place``."""
    before = shared_memory()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(place))
        patch.setenv("AUTOTUNE_WORKLOADS", str(FILE))
        patch.setattr(gang_module, "GRACE", grace)
        patch.setitem(evaluation.BURSTS, "interpreter", 1)
        found = workload("faulty")
        problem = found.problem_type(**dimensions, world_size=world_size)
        with Sniper(found, Task(problem, machine()), deadlines=dict.fromkeys(PHASES, PATIENT)) as started:
            yield started
            pids = [process.pid for process in started._processes]
        assert all(gone(pid, within=300) for pid in pids)
        assert os.listdir(place) == []
    assert not left_in_shared_memory(before)


def survive(gang: Sniper, case: Case) -> None:
    """Evaluate a config with the fault: it ends as it should, soon enough, and the next one is measured."""
    target, gang.target = gang.target, None
    gang.allow(case.fault)
    gang.target = target
    before, pids = gang.restarts, [process.pid for process in gang._processes]
    outcome, begin = ENDS[case.fault][0], time.monotonic()
    if outcome is None:
        with pytest.raises(GangError, match=case.reason):
            gang.evaluate(case.config, 7, ONCE)
    else:
        found = gang.evaluate(case.config, 7, ONCE)
        assert (found.outcome, found.latency) == (outcome, None), found
        assert re.match(case.reason, found.reason), found.reason
        check_restarts(gang, case.fault, before, pids)
        assert (RESTART in found.seconds) == (gang.restarts > before)
        assert found.seconds.get(case.named_phase, 0.0) <= gang._deadlines[case.named_phase] + gang_module.GRACE + LATE
    allowed = gang._deadlines[case.named_phase] + gang_module.GRACE + LONGEST_RESTART
    assert time.monotonic() - begin < allowed
    gang.allow("does not compile")
    assert gang.evaluate(GOOD, 8, ONCE).outcome is Outcome.MEASURED


def check_restarts(gang: Gang, fault: str, before: int, pids: list[int]) -> None:
    """A death or a hang costs one restart and leaves no process; a reported failure costs at most one."""
    restarted = gang.restarts - before
    assert restarted == 1 if ENDS[fault][1].startswith((SILENT, DIED)) else restarted <= 1
    if restarted:
        assert all(gone(pid) for pid in pids)
