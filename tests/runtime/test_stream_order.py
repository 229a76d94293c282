"""The order of a process's calls, with a stand-in for the GPUs' driver."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

from autotune.runtime import stream_order


class Current(threading.local):
    """As torch and CUDA have it: each thread begins with the first GPU."""

    index = 0


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> Current:
    found = Current()

    @contextlib.contextmanager
    def device(wanted: torch.device) -> Iterator[None]:
        before, found.index = found.index, wanted.index
        yield
        found.index = before

    monkeypatch.setattr(torch.cuda, "current_device", lambda: found.index)
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda of: SimpleNamespace(wait_stream=lambda other: None))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    driver = SimpleNamespace(active=SimpleNamespace(get_current_stream=lambda index: 100 + index))
    monkeypatch.setattr(stream_order, "driver", driver)
    return found


def test_a_call_is_made_on_its_device_by_any_thread(current: Current) -> None:
    own, seen = stream_order.StreamOrder(), []

    def calls() -> None:
        for _ in range(2):
            own.take(torch.device("cuda", 1), lambda: seen.append(current.index))
        seen.append(current.index)

    current.index = 1
    calls()
    assert seen == [1, 1, 1]
    thread = threading.Thread(target=calls)
    thread.start()
    thread.join()
    assert seen[3:] == [1, 1, 0], "the launches on the heap's device, the thread as it was"


@dataclass
class Stream:
    number: int
    waited: list[Stream] = field(default_factory=list)

    def wait_stream(self, other: Stream) -> None:
        self.waited.append(other)


def test_a_call_waits_for_the_one_before_on_another_stream(current: Current, monkeypatch: pytest.MonkeyPatch) -> None:
    own, streams, capturing = stream_order.StreamOrder(), [Stream(0), Stream(1), Stream(2)], False
    now = streams[0]
    active = SimpleNamespace(get_current_stream=lambda index: now.number)
    monkeypatch.setattr(stream_order, "driver", SimpleNamespace(active=active))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda of: now)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)

    def call() -> list[Stream]:
        now.waited.clear()
        own.take(torch.device("cuda", 0), lambda: None)
        return list(now.waited)

    assert call() == call() == [], "no call before, then one on the same stream"
    now = streams[1]
    assert call() == [streams[0]] and call() == []
    now, capturing = streams[2], True
    assert call() == [], "what is captured has the caller's order"
    capturing = False
    assert call() == [streams[1]]
    own.forget()
    now = streams[0]
    assert call() == [], "of a program that has closed its contexts no stream is kept"
