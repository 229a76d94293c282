"""Bursts on one interpreted rank: when it is late, and when it is held within a call. Starts no process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune.ranks import bursts as bursts_module
from autotune.ranks.bursts import CROWDED, HEAD_START, HELD, ROOM, Bursts
from autotune.ranks.measure import SLOWEST_CLOCK_GHZ
from autotune.workloads.tolerance import Error

PAUSE = 0.5


class Told:
    """Stands in for a rank's heap, operation and inputs, and notes what happens."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.count = 3
        self._output = torch.zeros(2)

    def outputs(self) -> list[torch.Tensor]:
        return [self._output]

    def put(self, number: int) -> None:
        self.events.append(f"put {number}")

    def error_of(self, outputs: list[torch.Tensor], number: int) -> Error:
        self.events.append(f"compare {number}")
        return Error(float(outputs[0][0]), 0.0)

    def barrier(self) -> None:
        self.events.append("barrier")

    def run(self) -> None:
        assert self._output.isnan().all(), "what a call does not write is seen"
        self.events.append("run")
        self._output.fill_(len(self.events))

    @contextlib.contextmanager
    def held(self, seconds: float) -> Iterator[None]:
        self.events.append(f"held {seconds}")
        yield

    def sleep(self, seconds: float) -> None:
        self.events.append(f"sleep {seconds}")


def burst_events(
    monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int, count: int = 3, device: str = "cpu"
) -> list[list[str]]:
    told: Any = Told()
    monkeypatch.setattr(bursts_module, "first_poll_held", told.held)
    monkeypatch.setattr(bursts_module, "time", told)
    monkeypatch.setattr(bursts_module, "_slowed", contextlib.nullcontext)
    place = SimpleNamespace(type=device)
    heap: Any = SimpleNamespace(rank=rank, world_size=world_size, device=place, barrier=told.barrier)
    if device == "cuda":
        simulate_gpu(monkeypatch, told)
    bursts = Bursts(heap, told, told.run, told, seed=1, stagger=0.25, pause=PAUSE)
    found = []
    errors = bursts.errors(count, 2)
    for number in range(count):
        told.events.clear()
        overall = [next(errors).overall for _ in range(2)]
        assert overall[0] < overall[1]  # each call's own output is compared
        numbers = [(2 * number + call) % told.count for call in range(2)]
        compared = [f"compare {each}" for each in numbers]
        assert [each for each in told.events if each.startswith("put")] == [f"put {each}" for each in numbers]
        assert told.events[0] == "barrier" and told.events[-3:] == ["barrier", *compared]
        found.append([each.split()[0] if each.startswith("put") else each for each in told.events[1:-3]])
    assert not list(errors) and told.events[-1] == f"put {told.count - 1}", "whose times count"
    return found


def simulate_gpu(monkeypatch: pytest.MonkeyPatch, told: Told) -> None:

    class Crowd:
        def __init__(self, kernel: Any, programs: int, arguments: dict[str, int], options: dict[str, int]) -> None:
            self.told = f"crowd of {programs} for {arguments['nanoseconds'] / 1e9}"

        def run(self) -> None:
            told.events.append(self.told)

    properties = SimpleNamespace(multi_processor_count=100, warp_size=32)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "main")
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: told.sleep(cycles / SLOWEST_CLOCK_GHZ / 1e9))
    monkeypatch.setattr(bursts_module, "Launch", Crowd)
    monkeypatch.setattr(bursts_module, "side_stream", lambda heap, name: "beside")
    monkeypatch.setattr(bursts_module, "wait", lambda streams, others: None)
    monkeypatch.setattr(bursts_module, "on", lambda stream: contextlib.nullcontext())


FREE = ["put", "run", "put", "run"]
LATE = ["put", f"sleep {PAUSE}", f"held {HELD * PAUSE}", "run", "put", f"sleep {PAUSE}", "run"]


def test_each_interpreted_rank_is_late_in_its_turn_and_is_held_once_a_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    for rank, turn in ((1, 0), (2, 1), (0, 2)):
        events = burst_events(monkeypatch, rank, 3, count=9)
        assert events[0] == [f"sleep {0.25 * ((rank + 1) % 3)}", *FREE]
        assert events[1::3] == [LATE if number == turn else FREE for number in range(3)]
        assert events[2::3] == [FREE if number == turn else LATE for number in range(3)]


def test_a_rank_of_a_gpu_is_crowded_in_a_fourth_kind_of_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    late = ["put", f"sleep {PAUSE}", "run"] * 2
    full, half = (f"crowd of {programs} for {CROWDED * PAUSE}" for programs in (200 - ROOM, 100))
    there = f"sleep {HEAD_START}"
    crowded = ["put", full, there, "run", "put", half, there, "run"]
    for rank, kinds in {0: [FREE, late, FREE], 1: [late, FREE, crowded]}.items():
        assert burst_events(monkeypatch, rank, 2, count=4, device="cuda")[1:] == kinds
