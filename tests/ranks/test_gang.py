"""The gang: what it measures, what starting it takes, and what is left of it when its driver is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from process_ends import gone

from autotune.config import Config
from autotune.environment import machine
from autotune.errors import GangError
from autotune.ranks.evaluation import MeasurePlan
from autotune.ranks.gang import Gang
from autotune.ranks.measure import combine
from autotune.workloads import workload

CONFIG = Config(
    {
        "mode": "push", "block_m": 16, "block_n": 32, "block_k": 32, "group_m": 1, "num_warps": 4, "num_stages": 2,
        "loads": "pointer", "schedule": "tile", "unit_rows": 16, "comm_programs": 1, "copy_kib": 2,
        "peer_order": "rotate", "push_site": "same_launch", "head_start": 0, "split_k": 1,
        "preload_b": False, "k_chunks": 1,
    }
)  # fmt: skip

pytestmark = pytest.mark.skipif(not machine().is_interpreter, reason="the problem is one for interpreted ranks")


def new_gang() -> Gang:
    found = workload("all_gather_gemm")
    return Gang(found, found.problem_type(m=32, n=64, k=64, world_size=2), machine())


def test_a_slow_config_is_not_run_to_the_end_and_the_parts_are_measured() -> None:
    with new_gang() as gang:
        dropped = gang.evaluate(CONFIG, 1, MeasurePlan(0, 3, 6, incumbent=(1.0,) * 9))
        kept = gang.evaluate(CONFIG, 1, MeasurePlan(0, 3, 6, incumbent=(1e9,) * 9))
        parts = gang.measure_parts(1, 3)
        assert set(gang.start_seconds) == {"imports", "joining", "heap", "set-up"}
        assert all(seconds > 0 for seconds in gang.start_seconds.values())
    assert dropped.latency is not None and dropped.latency.iterations == 3
    assert kept.latency is not None and kept.latency.iterations == 6
    assert set(parts) == {"all_gather", "gemm"} and all(part.median > 0 for part in parts.values())


def test_ranks_that_cannot_start_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_HEAP_BYTES", "16")
    with pytest.raises(GangError, match="symmetric heap: .* bytes asked"):
        new_gang().start()


DRIVER = """
import sys, time
from autotune.environment import machine
from autotune.ranks.gang import Gang
from autotune.workloads import workload
found = workload("all_gather_gemm")
with Gang(found, found.problem_type(m=32, n=64, k=64, world_size=2), machine()) as gang:
    print(*(process.pid for process in gang._processes), flush=True)
    time.sleep(float(sys.argv[1]))
"""


def driver(seconds: float, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", DRIVER, str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(folder)})


def pids_of(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    return [int(word) for word in process.stdout.readline().split()]


def test_a_killed_driver_takes_its_ranks_with_it_and_the_next_one_sweeps_its_folder(tmp_path: Path) -> None:
    with driver(60, tmp_path) as killed:
        pids = pids_of(killed)
        killed.send_signal(signal.SIGKILL)
    assert len(pids) == 2 and all(gone(pid, within=10) for pid in pids)
    assert len(list(tmp_path.iterdir())) == 1, "nobody was left to remove it"
    with driver(0, tmp_path) as orderly:
        assert len(pids_of(orderly)) == 2
    assert list(tmp_path.iterdir()) == []


def test_of_each_iteration_the_slowest_rank_counts() -> None:
    latency = combine([[10.0, 30.0, 20.0], [15.0, 25.0, 40.0]])
    assert (latency.median, latency.skew, latency.by_rank) == (30.0, 5.0, (20.0, 25.0))
    assert latency.low < latency.median < latency.high and latency.iterations == 3
