"""The stopwatch: barriers that a rank has missed spoil no later measurement, and are never taken for a time."""

from __future__ import annotations

import dataclasses
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from ranks_of_functions import run_ranks

from autotune.config import Config
from autotune.errors import MissedBarrier
from autotune.heap import open_heap
from autotune.kernels.launching.one_program import empty_launches
from autotune.machine import machine
from autotune.outcome import Outcome
from autotune.ranks.clocks import clocks_of
from autotune.ranks.evaluation import MeasurePlan
from autotune.ranks.gang import Gang
from autotune.ranks.measure import BACK_TO_BACK_FROM, FEW_HOST_CALLS, HOST_AHEAD_FROM, Stopwatch
from autotune.task import Task
from autotune.tuning.finals import finals_plan
from autotune.workloads import workload


def test_a_timing_says_that_a_rank_did_not_come_and_the_next_one_starts_clean(tmp_path: Path) -> None:
    first, second = run_ranks(__file__, "missed", 2, tmp_path, seconds=270)
    assert first[0] == second[0] == [0] * 4
    assert "missed the barrier" in first[1]
    assert second[1] == "measured", "it came to all barriers that it knew of"


def test_clocks_of_other_hosts_are_compared(tmp_path: Path) -> None:
    *here, there = run_ranks(__file__, "clocks", 3, tmp_path, argument=1e6, seconds=270)
    assert here == [[0.0, 0.0]] * 2, "one host has one clock"
    assert there == [pytest.approx(1e6, abs=0.05)] * 2


@pytest.mark.parametrize("gpu", [False, pytest.param("one", marks=pytest.mark.gpu)], ids=["interpreter", "GPU"])
def test_all_ranks_time_a_call_in_the_same_way_however_long_each_finds_it(tmp_path: Path, gpu: bool | str) -> None:
    first, second = run_ranks(__file__, "near_the_thresholds", 2, tmp_path, gpu=gpu, seconds=270)
    assert first[:2] == second[:2] == [[False, FEW_HOST_CALLS], [True, FEW_HOST_CALLS]]
    assert first[2:] == second[2:] == ([2 + 3 + FEW_HOST_CALLS] if gpu else [])


@pytest.mark.gpu(2, each=True)
def test_a_host_that_slows_down_is_not_taken_for_the_devices_time(tmp_path: Path) -> None:
    """The sleep that keeps the host ahead was chosen when it was quick."""
    slow = 300e-6
    for times in run_ranks(__file__, "of_a_host_that_slows_down", 2, tmp_path, gpu=True, argument=slow, seconds=270):
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


FEW_POLLS = 1 << 8


def missed(_: Any) -> tuple[list[int], str]:
    return missed_before(_), missed_meanwhile(_)


def missed_before(_: Any) -> list[int]:
    """The barriers' counters, after a timing that follows three missed barriers: epochs, status, one per rank."""
    watch = Stopwatch(open_heap(1 << 20, dist.new_group(backend="gloo")), machine(), FEW_POLLS)
    if dist.get_rank() == 0:
        for _ in range(3):
            watch._barrier.run()
    watch.time(lambda: None, warmup=0, iterations=2)
    counters: list[int] = watch._counters.tolist()
    return [*watch._epoch_counter.tolist(), int(watch._status[0]), *counters]


def missed_meanwhile(_: Any) -> str:
    """The error of a timing in which rank 1 does not come to a barrier; the host plays the device's part."""
    watch = Stopwatch(open_heap(1 << 20, dist.new_group(backend="gloo")), machine(), FEW_POLLS)

    def device_times(*_: Any) -> list[float]:
        if dist.get_rank() == 0:
            watch._barrier.run()
        return [1.0]

    watch._machine = dataclasses.replace(watch._machine, kind="cuda")
    watch._device_times = device_times  # type: ignore[method-assign]
    try:
        watch.time(lambda: None, warmup=0, iterations=1)
    except MissedBarrier as error:
        return str(error)
    return "measured"


def clocks(fast: float) -> list[float]:
    """By how much each rank's clock is found to be ahead of rank 0's; those of the last one's host are so fast."""
    world_size, rank = dist.get_world_size(), dist.get_rank()
    os.environ["GROUP_RANK"] = str(int(rank == world_size - 1))
    true = time.monotonic
    clock = (lambda: true() + fast) if rank == world_size - 1 else true
    with mock.patch("autotune.ranks.clocks.time", SimpleNamespace(monotonic=clock)):
        ahead_of_first = clocks_of(dist.new_group(backend="gloo"))
        return [ahead_of_first() for _ in range(2)]


def near_the_thresholds(_: Any) -> list[Any]:
    """Timings of calls that rank 0 finds shorter than a threshold and rank 1 longer; on a GPU also the calls made."""
    polls = FEW_POLLS << (6 if machine().is_interpreter else 12)
    watch = Stopwatch(open_heap(1 << 20, dist.new_group(backend="gloo")), machine(), polls)
    share = 1.5 if dist.get_rank() else 0.5
    found: list[Any] = [watch._way_of(HOST_AHEAD_FROM * share), watch._way_of(BACK_TO_BACK_FROM * share)]
    if not machine().is_interpreter:
        cycles, made = int(HOST_AHEAD_FROM * share * watch.clock() * 1e6), []

        def call() -> None:
            made.append(None)
            torch.cuda._sleep(cycles)

        watch.time(call, warmup=1, iterations=2)
        found.append(len(made))
    return found


def of_a_host_that_slows_down(seconds: float) -> list[float]:
    """Device times of an empty launch whose enqueueing takes that long from the third call on."""
    watch = Stopwatch(open_heap(1 << 20, dist.new_group(backend="gloo")), machine(), FEW_POLLS << 12)
    [empty] = empty_launches(1)
    made = []

    def call() -> None:
        made.append(None)
        if len(made) > 2:
            time.sleep(seconds)
        empty.run()

    return watch.time(call, warmup=8, iterations=20).device


@pytest.fixture(scope="module")
def gang() -> Iterator[Gang]:
    found = workload("all_gather_gemm")
    with Gang(found, Task(found.problem_type(m=1024, n=4096, k=4096, world_size=2), machine())) as started:
        yield started


@pytest.mark.gpu(1)
def test_a_config_has_its_time_on_the_device_the_hosts_and_that_of_an_isolated_call(gang: Gang) -> None:
    config = gang.workload.default_config(Task(gang.problem, gang.machine))
    latency = gang.evaluate(config, 1, finals_plan(10)).latency
    assert latency is not None and latency.host is not None and latency.isolated is not None
    print(f"device {latency.median:.1f} µs, host {latency.host:.1f} µs, isolated {latency.isolated:.1f} µs")
    assert 1 < latency.host < 5000 and latency.isolated > latency.host
    assert latency.iterations >= 10


@pytest.mark.gpu(1)
def test_the_rates_are_those_of_a_gpu(gang: Gang) -> None:
    rates = gang.measure_rates("bf16")
    print({name: f"{rate:.3g}" for name, rate in rates.items()})
    assert set(rates) == {"links", "memory", "flops"}
    assert rates["flops"] > 20e6 and rates["memory"] > 0.2e6 and rates["links"] > 1e3
