"""More ways in which a config can go wrong on its ranks; one gang lives through all of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.config import Config
from autotune.environment import machine
from autotune.outcome import Evaluation, Outcome
from autotune.ranks import gang as gang_module
from autotune.ranks.evaluation import MeasurePlan
from autotune.ranks.gang import Gang
from autotune.workloads import registry, workload

pytestmark = pytest.mark.skipif(not machine().is_interpreter, reason="the faults are planted in interpreted ranks")

ONCE = MeasurePlan(warmup=0, screen=1, iterations=1)
GOOD = Config({"mode": "bsp", "launch": "eager"})
"""The quickest of all; what is tested is not the kernels."""


@pytest.fixture(scope="module")
def gang() -> Iterator[Gang]:
    """Two ranks that find the workload with planted faults; short deadlines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNE_WORKLOADS", str(Path(__file__).parent / "faults.py"))
        patch.setattr(gang_module, "GRACE", 1.0)
        patch.setattr(gang_module, "DEADLINES", {"interpreter": {**gang_module.DEADLINES["interpreter"], "check": 3.0}})
        registry._from_files.cache_clear()
        found = workload("faulty")
        with Gang(found, found.problem_type(m=32, n=64, k=64, world_size=2), machine()) as started:
            yield started
    registry._from_files.cache_clear()


@pytest.fixture(autouse=True)
def known_to_new_ranks(gang: Gang, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test starts without our settings; ranks that are started again inherit this one."""
    monkeypatch.setenv("AUTOTUNE_WORKLOADS", str(Path(__file__).parent / "faults.py"))


def evaluate(gang: Gang, fault: str = "", plan: MeasurePlan = ONCE) -> Evaluation:
    return gang.evaluate(GOOD.replace(fault=fault) if fault else GOOD, 7, plan)


def words(gang: Gang, rank: int) -> str:
    return gang._log(rank).read_text()


def gone(pid: int) -> bool:
    """Whether the process has ended; a zombie that nobody has waited for counts."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


MENDED = [
    ("leaves NaN", Outcome.WRONG_RESULT, "rank 1: error nan"),
    ("wrong when repeated", Outcome.WRONG_RESULT, "after timing, ranks arriving one by one: rank 1"),
    ("gives up when timed", Outcome.TIMED_OUT, "gave up while being timed"),
    ("does not compile", Outcome.DID_NOT_COMPILE, "planted: ptxas said no"),
    ("out of memory", Outcome.OUT_OF_RESOURCES, "rank 0: OutOfMemoryError: CUDA out of memory"),
]
"""Faults that the ranks survive."""

BROKEN = [
    ("heap exhausted on one rank", Outcome.OUT_OF_RESOURCES, "rank 1: HeapExhausted: symmetric heap: planted"),
    ("device lost", Outcome.CRASHED, "rank 1: RuntimeError: CUDA error: an illegal memory access"),
    ("exits", Outcome.CRASHED, "rank 1 died in phase check: exit code 3; last words"),
]
"""Faults after which the ranks have to be started again."""


@pytest.mark.parametrize(("fault", "outcome", "reason"), MENDED, ids=[fault for fault, *_ in MENDED])
def test_ranks_that_report_a_fault_go_on(gang: Gang, fault: str, outcome: Outcome, reason: str) -> None:
    restarts, pids = gang.restarts, [process.pid for process in gang._processes]
    found = evaluate(gang, fault)
    assert (found.outcome, found.latency) == (outcome, None) and reason in found.reason
    assert found.seconds.get("check", 0.0) > 0
    assert evaluate(gang).outcome is Outcome.MEASURED
    assert gang.restarts == restarts and [process.pid for process in gang._processes] == pids


@pytest.mark.parametrize(("fault", "outcome", "reason"), BROKEN, ids=[fault for fault, *_ in BROKEN])
def test_ranks_that_break_are_started_again(gang: Gang, fault: str, outcome: Outcome, reason: str) -> None:
    restarts, pids = gang.restarts, [process.pid for process in gang._processes]
    found = evaluate(gang, fault)
    assert (found.outcome, found.latency) == (outcome, None) and reason in found.reason
    assert gang.restarts == restarts + 1 and all(gone(pid) for pid in pids)
    assert evaluate(gang).outcome is Outcome.MEASURED
    assert gang.restarts == restarts + 1


def test_a_rank_that_dies_between_two_configs_costs_neither_of_them(gang: Gang) -> None:
    restarts = gang.restarts
    os.kill(gang._processes[0].pid, signal.SIGKILL)
    gang._processes[0].wait()
    assert evaluate(gang).outcome is Outcome.MEASURED
    assert gang.restarts == restarts + 1


def test_what_a_rank_started_dies_with_it(gang: Gang) -> None:
    fault = GOOD.replace(fault="has a child")
    children: list[int] = []

    def remember(rank: int) -> Path:
        log = Gang._log(gang, rank)
        if log.exists():
            children.extend(int(line.split()[1]) for line in log.read_text().splitlines() if line.startswith("child "))
        return log

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gang, "_log", remember)  # the new rank's log takes the old one's place
        found = gang.evaluate(fault, 7, ONCE)
    assert found.outcome is Outcome.TIMED_OUT and "phase check within 3 s" in found.reason
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and not all(gone(pid) for pid in children):
        time.sleep(0.05)
    assert children and all(gone(pid) for pid in children)


def test_a_good_config_has_all_its_numbers(gang: Gang) -> None:
    found = evaluate(gang, plan=MeasurePlan(warmup=1, screen=2, iterations=5))
    assert found.outcome is Outcome.MEASURED and found.latency is not None and found.error is not None
    assert found.latency.iterations == 5 and len(found.latency.by_rank) == 2
    assert found.latency.low <= found.latency.median <= found.latency.high and found.latency.skew >= 0
    assert 0 <= found.error <= gang.workload.tolerance(gang.problem).overall
    assert set(found.seconds) == {"compile", "check", "measure", "total"}
    assert sum(found.seconds.values()) <= 2 * found.seconds["total"] + 1e-3


def test_clearly_slower_at_the_screening_keeps_that_latency(gang: Gang) -> None:
    plan = MeasurePlan(warmup=0, screen=3, iterations=9, incumbent=(0.5,) * 9)
    found = evaluate(gang, plan=plan)
    assert found.outcome is Outcome.MEASURED and found.latency is not None
    assert found.latency.iterations == plan.screen


def test_parts_have_a_latency_each(gang: Gang) -> None:
    parts = gang.measure_parts(0, 2)
    assert {name: part.iterations for name, part in parts.items()} == {"all_gather": 2, "gemm": 2}
