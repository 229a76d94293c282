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


@dataclass
class Stream:
    number: int
    waited: list[Stream] = field(default_factory=list)

    def wait_stream(self, other: Stream) -> None:
        self.waited.append(other)


class Current(threading.local):
    """As torch and CUDA have it: each thread begins with the first GPU."""

    index = 0
    stream = Stream(0)
    capturing = False


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
    monkeypatch.setattr(torch.cuda, "current_stream", lambda of: found.stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: found.capturing)
    active = SimpleNamespace(get_current_stream=lambda index: found.stream.number)
    monkeypatch.setattr(stream_order, "driver", SimpleNamespace(active=active))
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


def test_a_call_waits_for_the_one_before_on_another_stream(current: Current) -> None:
    own, streams = stream_order.StreamOrder(), [Stream(0), Stream(1), Stream(2)]

    def call(number: int) -> list[Stream]:
        current.stream = streams[number]
        current.stream.waited.clear()
        own.take(torch.device("cuda", 0), lambda: None)
        return list(current.stream.waited)

    assert call(0) == call(0) == [], "no call before, then one on the same stream"
    assert call(1) == [streams[0]] and call(1) == []
    current.capturing = True
    assert call(2) == [], "what is captured has the caller's order"
    current.capturing = False
    assert call(2) == [streams[1]]
    own.forget()
    assert call(0) == [], "of a program that has closed its contexts no stream is kept"
