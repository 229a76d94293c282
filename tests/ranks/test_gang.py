"""The gang survives what configs do to it, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.config import Config
from autotune.environment import machine
from autotune.errors import GangError
from autotune.outcome import Outcome
from autotune.ranks import gang as gang_module
from autotune.ranks.evaluation import MeasurePlan
from autotune.ranks.gang import Gang
from autotune.ranks.measure import combine
from autotune.workloads import Workload, registry, workload

MISBEHAVING = Path(__file__).parent / "misbehaving.py"
ONCE = MeasurePlan(warmup=0, screen=1, iterations=1)
GOOD, KILLED, CORRUPT, HANGS, BUG = 1, 2, 4, 8, 16

CONFIG = Config(
    {
        "mode": "push", "block_m": 16, "block_n": 32, "block_k": 32, "group_m": GOOD, "num_warps": 4, "num_stages": 2,
        "loads": "pointer", "schedule": "tile", "unit_rows": 16, "comm_programs": 1, "copy_kib": 2,
        "peer_order": "rotate", "push_site": "same_launch", "head_start": 0, "split_k": 1,
        "preload_b": False, "k_chunks": 1,
    }
)  # fmt: skip

pytestmark = pytest.mark.skipif(not machine().is_interpreter, reason="the faults are planted in interpreted ranks")


@pytest.fixture
def misbehaving(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workload]:
    """The workload with planted faults, known to driver and ranks."""
    monkeypatch.setenv("AUTOTUNE_WORKLOADS", str(MISBEHAVING))
    monkeypatch.setattr(gang_module, "GRACE", 1.0)
    registry._from_files.cache_clear()
    yield workload("misbehaving")
    registry._from_files.cache_clear()


def problem_for(found: Workload) -> object:
    return found.problem_type(m=32, n=64, k=64, world_size=2)


def start(found: Workload) -> Gang:
    return Gang(found, problem_for(found), machine())  # type: ignore[arg-type]


def test_every_fault_becomes_an_outcome_and_the_next_config_works(misbehaving: Workload) -> None:
    with start(misbehaving) as gang:
        folder = gang._folder
        good = gang.evaluate(CONFIG, 1, ONCE)
        assert good.outcome is Outcome.MEASURED and good.latency is not None
        assert len(good.latency.by_rank) == 2 and {"compile", "check", "measure"} <= set(good.seconds)

        killed = gang.evaluate(CONFIG.replace(group_m=KILLED), 2, ONCE)
        assert killed.outcome is Outcome.CRASHED and "rank 1" in killed.reason and "SIGKILL" in killed.reason
        assert gang.restarts == 1
        assert gang.evaluate(CONFIG, 3, ONCE).outcome is Outcome.MEASURED

        corrupt = gang.evaluate(CONFIG.replace(group_m=CORRUPT), 4, ONCE)
        assert corrupt.outcome is Outcome.WRONG_RESULT and corrupt.reason.startswith("rank 1")
        assert corrupt.latency is None

        exhausted = gang.evaluate(CONFIG.replace(num_stages=6), 5, ONCE)
        assert exhausted.outcome is Outcome.OUT_OF_RESOURCES and "planted" in exhausted.reason

        waited = gang.evaluate(CONFIG.replace(num_stages=5), 6, ONCE)
        assert waited.outcome is Outcome.TIMED_OUT and "gave up" in waited.reason
        assert gang.restarts == 1, "none of these three breaks a rank"
        assert gang.evaluate(CONFIG, 7, ONCE).outcome is Outcome.MEASURED

        gang._deadlines["check"] = 4.0
        hung = gang.evaluate(CONFIG.replace(group_m=HANGS), 8, ONCE)
        assert hung.outcome is Outcome.TIMED_OUT and "phase check" in hung.reason
        assert gang.restarts == 2
        assert gang.evaluate(CONFIG, 9, ONCE).outcome is Outcome.MEASURED
        pids = [process.pid for process in gang._processes]
    assert folder is not None and not folder.path.exists()
    assert all(gone(pid) for pid in pids)


def test_an_unexpected_exception_stops_the_run_with_its_traceback(misbehaving: Workload) -> None:
    with start(misbehaving) as gang, pytest.raises(GangError, match=r"rank 1(?s:.*)ZeroDivisionError: planted"):
        gang.evaluate(CONFIG.replace(group_m=BUG), 1, ONCE)


def test_a_slow_config_is_not_run_to_the_end_and_the_parts_are_measured() -> None:
    found = workload("all_gather_gemm")
    with start(found) as gang:
        dropped = gang.evaluate(CONFIG, 1, MeasurePlan(0, 3, 6, incumbent=(1.0,) * 9))
        kept = gang.evaluate(CONFIG, 1, MeasurePlan(0, 3, 6, incumbent=(1e9,) * 9))
        parts = gang.measure_parts(1, 3)
    assert dropped.latency is not None and dropped.latency.iterations == 3
    assert kept.latency is not None and kept.latency.iterations == 6
    assert set(parts) == {"all_gather", "gemm"} and all(part.median > 0 for part in parts.values())


def test_ranks_that_cannot_start_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_HEAP_BYTES", "1000")
    with pytest.raises(GangError, match="symmetric heap: .* bytes asked"):
        start(workload("all_gather_gemm")).start()


DRIVER = """
import time
from autotune.environment import machine
from autotune.ranks.gang import Gang
from autotune.workloads import workload
found = workload("all_gather_gemm")
gang = Gang(found, found.problem_type(m=32, n=64, k=64, world_size=2), machine())
gang.start()
print(*(process.pid for process in gang._processes), flush=True)
time.sleep(60)
"""


def test_a_killed_driver_takes_its_ranks_with_it(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}  # its folder stays behind: nobody is left to remove it
    with subprocess.Popen([sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, text=True, env=environment) as driver:
        assert driver.stdout is not None
        pids = [int(word) for word in driver.stdout.readline().split()]
        driver.send_signal(signal.SIGKILL)
    assert len(pids) == 2
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and not all(gone(pid) for pid in pids):
        time.sleep(0.1)
    assert all(gone(pid) for pid in pids)


def gone(pid: int) -> bool:
    """Whether the process has ended; a zombie that nobody has waited for counts."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


def test_of_each_iteration_the_slowest_rank_counts() -> None:
    latency = combine([[10.0, 30.0, 20.0], [15.0, 25.0, 40.0]])
    assert (latency.median, latency.skew, latency.by_rank) == (30.0, 5.0, (20.0, 25.0))
    assert latency.low < latency.median < latency.high and latency.iterations == 3
