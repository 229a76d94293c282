"""The stopwatch: barriers that a rank has missed spoil no later measurement, and are never taken for a time."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from ranks_of_functions import run_ranks

from autotune.config import Config
from autotune.machine import machine
from autotune.outcome import Outcome
from autotune.ranks.evaluation import MeasurePlan
from autotune.ranks.gang import Gang
from autotune.ranks.measure import FEW_HOST_CALLS
from autotune.task import Task
from autotune.workloads import workload

ON_RANKS = str(Path(__file__).parent / "stopwatch_on_ranks.py")


def test_a_timing_starts_clean_after_missed_barriers(tmp_path: Path) -> None:
    for counters in run_ranks(ON_RANKS, "missed_before", 2, tmp_path, seconds=270):
        assert counters == [0] * 4


def test_a_timing_in_which_a_rank_did_not_come_says_so(tmp_path: Path) -> None:
    first, second = run_ranks(ON_RANKS, "missed_meanwhile", 2, tmp_path, seconds=270)
    assert "missed the barrier" in first
    assert second == "measured", "it came to all barriers that it knew of"


def test_clocks_of_other_hosts_are_compared(tmp_path: Path) -> None:
    *here, there = run_ranks(ON_RANKS, "clocks", 3, tmp_path, argument=1e6, seconds=270)
    assert here == [[0.0, 0.0]] * 2, "one host has one clock"
    assert there == [pytest.approx(1e6, abs=0.05)] * 2


@pytest.mark.parametrize("gpu", [False, pytest.param("one", marks=pytest.mark.gpu)], ids=["interpreter", "GPU"])
def test_all_ranks_time_a_call_in_the_same_way_however_long_each_finds_it(tmp_path: Path, gpu: bool | str) -> None:
    first, second = run_ranks(ON_RANKS, "near_the_thresholds", 2, tmp_path, gpu=gpu, seconds=270)
    assert first[:2] == second[:2] == [[False, FEW_HOST_CALLS], [True, FEW_HOST_CALLS]]
    assert first[2:] == second[2:] == ([2 + 3 + FEW_HOST_CALLS] if gpu else [])


@pytest.mark.gpu(2, each=True)
def test_a_host_that_slows_down_is_not_taken_for_the_devices_time(tmp_path: Path) -> None:
    """The sleep that keeps the host ahead was chosen when it was quick."""
    slow = 300e-6
    for times in run_ranks(ON_RANKS, "of_a_host_that_slows_down", 2, tmp_path, gpu=True, argument=slow, seconds=270):
        assert statistics.median(times) < 0.2 * slow * 1e6, times


@pytest.mark.gpu
def test_ranks_that_take_turns_on_a_gpu_are_timed() -> None:
    """On one GPU its barriers end when the other rank gets its turn: slow, but no rank times out."""
    found = workload("gemm_all_reduce")
    problem = found.problem_type(m=16, n=1024, k=1024, world_size=2)
    config = found.default_config(Task(problem, machine()))
    assert isinstance(config, Config)
    with Gang(found, Task(problem, machine())) as gang:
        for seed in range(2):
            assert gang.evaluate(config, seed, MeasurePlan(1, 3, 3)).outcome is Outcome.MEASURED
