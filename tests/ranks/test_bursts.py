"""Bursts on one interpreted rank: when it is late, and when it is held within a call. Starts no process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune.ranks import bursts as bursts_module
from autotune.ranks.bursts import HELD, Bursts
from autotune.workloads.tolerance import Error

PAUSE = 0.5


class Told:
    """Stands in for a rank's heap, operation and inputs, and notes what happens."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.count = 2
        self._output = torch.zeros(2)

    def outputs(self) -> list[torch.Tensor]:
        return [self._output]

    def put(self, number: int) -> None:
        self.events.append(f"put {number}")

    def error(self, number: int, outputs: list[torch.Tensor]) -> Error:
        return Error(float(outputs[0][0]), 0.0)

    def run(self) -> None:
        self.events.append("run")
        self._output.fill_(len(self.events))

    @contextlib.contextmanager
    def held(self, seconds: float) -> Iterator[None]:
        self.events.append(f"held {seconds}")
        yield

    def sleep(self, seconds: float) -> None:
        self.events.append(f"sleep {seconds}")


def burst_events(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int) -> list[list[str]]:
    """What happens on a rank in three bursts of two calls, one of each kind."""
    told: Any = Told()
    monkeypatch.setattr(bursts_module, "first_poll_held", told.held)
    monkeypatch.setattr(bursts_module, "time", told)
    monkeypatch.setattr(bursts_module, "_slowed", contextlib.nullcontext)
    heap: Any = SimpleNamespace(rank=rank, world_size=world_size, device=torch.device("cpu"), barrier=lambda: None)
    bursts = Bursts(heap, told, told.run, told, seed=1, stagger=0.25, pause=PAUSE)
    found = []
    errors = bursts.errors(3, 2)
    for _ in range(3):
        told.events.clear()
        overall = [next(errors).overall for _ in range(2)]
        assert overall[0] < overall[1]  # each call's own output is compared
        found.append(list(told.events))
    return found


FREE = ["put 0", "run", "put 1", "run"]
LATE = [
    "put 0", f"sleep {PAUSE}", f"held {HELD * PAUSE}", "run",
    "put 1", f"sleep {PAUSE}", "run",
]  # fmt: skip


@pytest.mark.parametrize(("rank", "late", "early"), [(0, FREE, LATE), (1, LATE, FREE), (2, FREE, LATE)])
def test_a_late_interpreted_rank_is_held_once_a_burst(
    monkeypatch: pytest.MonkeyPatch, rank: int, late: list[str], early: list[str]
) -> None:
    one_by_one, one_late, one_early = burst_events(monkeypatch, rank, 3)
    assert one_by_one == [f"sleep {0.25 * ((rank + 1) % 3)}", *FREE]
    assert one_late == late
    assert one_early == early
