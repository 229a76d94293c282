"""Functions that the stopwatch's tests run on every rank, where the ranks differ."""

from __future__ import annotations

import dataclasses
import os
import time
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from autotune.errors import MissedBarrier
from autotune.heap import open_heap
from autotune.kernels.launching.empty import empty_launches
from autotune.machine import machine
from autotune.ranks.clocks import clocks_of
from autotune.ranks.measure import BACK_TO_BACK_FROM, HOST_AHEAD_FROM, Stopwatch

FEW_POLLS = 1 << 8


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
    """The ways in which calls are timed that rank 0 finds shorter than a threshold and rank 1 longer; on a GPU also
    the number of calls that a whole timing has made.
    """
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
