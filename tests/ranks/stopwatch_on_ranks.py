"""What the stopwatch's tests run on every rank: rank 0 comes to meetings that rank 1 has missed."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch.distributed as dist

from autotune.errors import MissedMeeting
from autotune.heap import open_heap
from autotune.machine import machine
from autotune.ranks.measure import Stopwatch

FEW_POLLS = 1 << 8


def missed_before(_: Any) -> list[int]:
    """The meetings' counters, after a timing that comes after three missed meetings: state, status, one per rank."""
    watch = Stopwatch(open_heap(1 << 20, dist.new_group(backend="gloo")), machine(), FEW_POLLS)
    if dist.get_rank() == 0:
        for _ in range(3):
            watch._meet.run()
    watch.time(lambda: None, warmup=0, iterations=2)
    counters: list[int] = watch._counters.tolist()
    return counters


def missed_meanwhile(_: Any) -> str:
    """What a timing says in which rank 1 does not come to a meeting; the device's part is played by the host."""
    watch = Stopwatch(open_heap(1 << 20, dist.new_group(backend="gloo")), machine(), FEW_POLLS)

    def device_times(*_: Any) -> list[float]:
        if dist.get_rank() == 0:
            watch._meet.run()
        return [1.0]

    watch._machine = dataclasses.replace(watch._machine, kind="cuda")
    watch._device_times = device_times  # type: ignore[method-assign]
    try:
        watch.time(lambda: None, warmup=0, iterations=1)
    except MissedMeeting as error:
        return str(error)
    return "measured"
