"""Direct, captured and replayed calls: with a stand-in for CUDA's graphs, and on a GPU."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune.kernels.launching import graphs
from autotune.kernels.launching.graphs import Replayed, watched


class Device:
    def __init__(self) -> None:
        self.done: list[str] = []
        self.capturing = False
        self.fails = False
        self.mended: list[tuple[int, int]] = []

    def graph(self) -> Graph:
        return Graph(self)


class Graph:
    """Keeps what is called between begin and end, which is done when it is replayed."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._kept: list[str] = []

    def capture_begin(self, pool: Any, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local" and not gc.isenabled()
        self._before = list(self._device.done)

    def capture_end(self) -> None:
        self._kept, self._device.done = self._device.done[len(self._before) :], self._before
        if self._device.fails:
            raise RuntimeError("operation not permitted when stream is capturing")

    def replay(self) -> None:
        self._device.done += [f"replayed {name}" for name in self._kept]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    found = Device()
    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", found.graph)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: found.capturing)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(graphs, "side_stream", lambda heap, name: stream)
    monkeypatch.setattr(graphs, "on", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(graphs, "_pool", lambda: (0, 1))
    monkeypatch.setattr(graphs, "_mend", lambda device, pool: found.mended.append(pool))
    yield found
    graphs._REPLAYED.clear()


def a_call(device: Device, name: str = "a") -> Replayed:
    return Replayed(lambda: device.done.append(name), SimpleNamespace(device=None))  # type: ignore[arg-type]


def test_two_calls_are_direct_and_the_third_is_captured_unless_the_caller_captures(device: Device) -> None:
    call = a_call(device)
    for capturing in (False, False, True, False, True, False):
        device.capturing = capturing
        call()
    assert device.done == ["a", "a", "a", "replayed a", "a", "replayed a"] and gc.isenabled()


def test_a_callers_capture_is_told_before_the_call_and_no_other_one(device: Device) -> None:
    heap: Any = SimpleNamespace(device=torch.device("cuda"))
    kinds: list[Callable[[], None]] = [a_call(device), lambda: device.done.append("a")]
    for call in [watched(kind, heap, lambda: device.done.append("told")) for kind in kinds]:
        device.done.clear()
        for capturing in (False, True, False, False):
            device.capturing = capturing
            call()
        assert [each.removeprefix("replayed ") for each in device.done] == ["a", "told", "a", "a", "a"]


def test_what_cannot_be_captured_is_direct_for_good_and_said_once(
    device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    call = a_call(device)
    device.fails = True
    for _ in range(3):
        call()
    device.fails = False
    call()
    assert device.done == ["a", "a", "a", "a"] and not graphs._REPLAYED and device.mended == [(0, 1)]
    assert len(caplog.messages) == 1


def test_only_so_many_graphs_are_kept_those_of_the_latest_calls(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "MOST_GRAPHS", 2)
    calls = {name: a_call(device, name) for name in "abc"}
    for name in ("a", "a", "a", "b", "b", "b", "a", "c", "c", "c"):
        calls[name]()
    device.done.clear()
    for name in "ab":
        calls[name]()
    assert device.done == ["replayed a", "b"] and len(graphs._REPLAYED) == 2
    for _ in range(8 * graphs.DIRECT_CALLS):
        calls["b"]()
    assert device.done[-1] == "replayed b" and len(graphs._REPLAYED) == 2  # only who is called often has one again


def test_a_graph_goes_with_its_call(device: Device) -> None:
    call = a_call(device)
    for _ in range(3):
        call()
    assert len(graphs._REPLAYED) == 1
    del call
    assert not graphs._REPLAYED


class Heap:
    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())


@pytest.fixture
def counter() -> Iterator[torch.Tensor]:
    graphs._REPLAYED.clear()
    yield torch.zeros((), device="cuda")
    graphs._REPLAYED.clear()


@pytest.mark.gpu(1)
def test_calls_replay_again_after_all_graphs_are_gone(counter: torch.Tensor, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        call = Replayed(lambda: counter.add_(torch.ones_like(counter)), Heap())  # type: ignore[arg-type]
        for _ in range(6):
            call()
        assert len(graphs._REPLAYED) == 1
        del call
        assert not graphs._REPLAYED
    assert counter.item() == 18 and not caplog.messages


@pytest.mark.gpu(1)
def test_a_failed_capture_spoils_nothing(counter: torch.Tensor, caplog: pytest.LogCaptureFixture) -> None:
    def waits() -> None:
        counter.add_(torch.ones_like(counter))
        torch.cuda.synchronize()  # which no capture takes

    call = Replayed(waits, Heap())  # type: ignore[arg-type]
    for _ in range(5):
        call()
    assert counter.item() == 5 and len(caplog.messages) == 1 and not graphs._REPLAYED
    torch.randn(8, device="cuda")  # torch: "Offset increment outside graph capture"
    another = Replayed(lambda: counter.add_(torch.ones_like(counter)), Heap())  # type: ignore[arg-type]
    for _ in range(5):
        another()
    assert counter.item() == 10 and len(graphs._REPLAYED) == 1 and len(caplog.messages) == 1
