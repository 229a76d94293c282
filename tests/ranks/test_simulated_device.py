"""The stopwatch by the clock of a simulated device and host, and rates by what their times are said to be."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune.kernels.primitives.trace import KINDS, MOST_EVENTS, PASSED
from autotune.machine import H100, INTERPRETED
from autotune.ranks import measure, rates
from autotune.ranks.measure import (
    ATTEMPTS,
    BACK_TO_BACK_FROM,
    FEW_HOST_CALLS,
    HOST_BURSTS,
    HOST_CALLS,
    SHORTEST_PAUSE,
    SLOWEST_CLOCK_GHZ,
    WARM_CALLS,
    Stopwatch,
)
from autotune.ranks.rates import COPIED, LEAST_SENT, MOST_SENT, SIDE, measured_rates

US = 1e-6


class Simulated(Stopwatch):
    """A stopwatch of one rank; the device works off what the host enqueues, at 1.5 GHz."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host = self.device = 0.0
        self.slept: list[float] = []
        """Seconds, as the stopwatch counts cycles."""
        device = self

        class Event:
            def __init__(self, **_: Any) -> None: ...

            def record(self) -> None:
                device.enqueue(0.0)
                self.at = device.device

            def query(self) -> bool:
                return self.at <= device.host

            def elapsed_time(self, end: Any) -> float:
                return (end.at - self.at) * 1e3

        clocks = SimpleNamespace(perf_counter=lambda: self.host, monotonic=self.ticking)
        monkeypatch.setattr(measure, "time", clocks)
        for name, found in {"Event": Event, "_sleep": self.sleep, "synchronize": self.synchronize}.items():
            monkeypatch.setattr(torch.cuda, name, found)
        self._machine: Any = H100
        self._heap: Any = SimpleNamespace(barrier=lambda: None, host_barrier=lambda: None, device="cpu")
        self._flush, self._sink, self._spin_limit = torch.zeros(1), torch.zeros(()), 1
        self._barrier: Any = SimpleNamespace(run=lambda: None)
        self._epoch_counter, self._status = torch.zeros(1), torch.zeros(1)
        self._counters = torch.zeros(2)
        self._shortest_pause, self._ahead_of_first = SHORTEST_PAUSE, lambda: 0.0
        self.latest: Callable[[float], float] = lambda value: value

    def _latest(self, value: float) -> float:
        return self.latest(value)

    def enqueue(self, seconds: float) -> None:
        self.device = max(self.device, self.host) + seconds

    def sleep(self, cycles: int) -> None:
        self.slept.append(cycles / SLOWEST_CLOCK_GHZ / 1e9)
        self.enqueue(cycles / 1.5e9)

    def synchronize(self) -> None:
        self.host = max(self.host, self.device)

    def ticking(self) -> float:
        """So that a host that waits for a time gets there."""
        self.host += 0.01 * US
        return self.host

    def call(self, enqueueing: Callable[[int], float], working: Callable[[int], float]) -> Callable[[], None]:
        self.made = 0

        def run() -> None:
            self.host += enqueueing(self.made)
            self.enqueue(working(self.made))
            self.made += 1

        return run


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    return Simulated(monkeypatch)


TRIED = 2
"""Calls by which the stopwatch finds out how long one takes."""


def test_the_last_calls_are_timed_and_the_quickest_burst_of_the_host_counts(watch: Simulated) -> None:
    first_burst = TRIED + 3 + 4

    def enqueueing(number: int) -> float:
        return 10 * US if (number - first_burst) // HOST_CALLS == 1 else 15 * US

    timed = watch.time(watch.call(enqueueing, lambda number: (50 + number) * US), warmup=3, iterations=4)
    assert timed.device == pytest.approx([50 + TRIED + 3 + number for number in range(4)])
    assert timed.host == pytest.approx([10.0])
    assert watch.made == first_burst + HOST_BURSTS * HOST_CALLS


def test_the_device_sleeps_for_three_times_what_the_host_takes_less_what_the_device_works(watch: Simulated) -> None:
    """The first call, which captures, does not count."""
    call = watch.call(lambda number: (5000 if number == 0 else 100) * US, lambda number: 50 * US)
    watch.time(call, warmup=1, iterations=2)
    assert watch.slept == pytest.approx([250 * US] * 3)


def test_a_timing_begins_with_the_pause_that_a_slow_host_needed_in_the_one_before(watch: Simulated) -> None:
    """In shortest pauses. A host that has recovered is believed step by step."""
    slow = 3.5 * SHORTEST_PAUSE * SLOWEST_CLOCK_GHZ / 1.5  # seconds at the clock that is there

    def slept(host: float, warmup: int = 0) -> tuple[list[float], list[float]]:
        watch.slept.clear()
        call = watch.call(lambda number: 0.0 if number < TRIED else host, lambda number: 10 * US)
        timed = watch.time(call, warmup=warmup, iterations=4 - warmup)
        return [pause / SHORTEST_PAUSE for pause in watch.slept], timed.device

    assert slept(slow, warmup=2) == (pytest.approx([1, 2, 4, 4]), pytest.approx([10.0] * 2))
    assert slept(slow) == (pytest.approx([4] * 4), pytest.approx([10.0] * 4)), "no call's time is the host's"
    assert slept(0.0)[0] == pytest.approx([2] * 4)
    assert slept(0.0)[0] == pytest.approx([1] * 4)


def test_long_calls_sleep_before_the_first_alone_and_follow_each_other(watch: Simulated) -> None:
    timed = watch.time(watch.call(lambda number: US, lambda number: 2 * BACK_TO_BACK_FROM), warmup=1, iterations=2)
    assert watch.slept == pytest.approx([SHORTEST_PAUSE])
    assert timed.device == pytest.approx([2 * BACK_TO_BACK_FROM / US] * 2)
    assert watch.made == TRIED + 3 + FEW_HOST_CALLS


def test_interpreted_calls_are_timed_by_the_host_behind_the_warm_up(watch: Simulated) -> None:
    watch._machine = INTERPRETED
    timed = watch.time(watch.call(lambda number: number * US, lambda number: 0.0), warmup=2, iterations=3)
    assert (timed.device, timed.host) == (pytest.approx([2.0, 3.0, 4.0]), [])


def test_an_isolated_call_lasts_from_the_common_start_to_the_device_s_end(watch: Simulated) -> None:
    [took] = watch.time_isolated(watch.call(lambda number: 5 * US, lambda number: 100 * US), 1)
    assert took == pytest.approx(105, abs=1) and watch.made == 1


@pytest.mark.parametrize(("late", "attempts"), [(0, 1), (2, 3), (99, ATTEMPTS)])
def test_an_isolated_call_that_another_rank_began_late_is_made_again(
    watch: Simulated, late: int, attempts: int
) -> None:
    asked = []

    def latest(value: float) -> float:
        asked.append(value)
        return value if len(asked) % 2 or len(asked) > 2 * late else 1.0

    watch.latest = latest
    [took] = watch.time_isolated(watch.call(lambda number: 0.0, lambda number: (number + 1) * 100 * US), 1)
    assert watch.made == attempts and took == pytest.approx(100 * attempts, abs=1), "the last one's"


def test_a_door_is_timed_as_calls_are_less_what_no_call_takes(
    watch: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read a clock takes 100 µs here, and so does to wait for the device."""

    def later() -> float:
        watch.host += 100 * US
        return watch.host

    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=later, monotonic=watch.ticking))
    monkeypatch.setattr(torch.cuda, "synchronize", later)
    isolated, host = watch.time_overhead(watch.call(lambda number: 6 * US, lambda number: 0.0), 5)
    assert isolated == pytest.approx([6.0] * 5, abs=0.1) and host == pytest.approx([6.0], abs=0.1)
    assert watch.made == WARM_CALLS + 5 + HOST_BURSTS * HOST_CALLS


def test_pauses_are_as_long_as_asked_at_the_clock_that_is_there(watch: Simulated) -> None:
    assert watch.clock() == pytest.approx(1500)
    late = watch.delayed(lambda: None, 1e-3)
    watch.synchronize()
    before = watch.device
    late()
    assert watch.device - before == pytest.approx(1e-3)


@pytest.mark.parametrize(
    ("kind", "origin", "microseconds"),
    [("cuda", 1000, 1e-3), ("hip", 1000, 1e-2), ("interpreter", 900, 1e-3)],
    ids=["nanoseconds", "AMD's tens of them", "one clock for all ranks, from the first that passed"],
)
def test_the_events_of_a_trace_are_those_of_its_last_call_since_the_barrier(
    monkeypatch: pytest.MonkeyPatch, watch: Simulated, kind: str, origin: int, microseconds: float
) -> None:
    watch._machine = dataclasses.replace(INTERPRETED if kind == "interpreter" else H100, kind=kind)
    trace = torch.zeros(1, KINDS.value, MOST_EVENTS.value, 3, dtype=torch.int64)
    watch.latest = lambda value: max(value, -900.0)
    made: list[int] = []

    def barrier(spin_limit: int, aligned: torch.Tensor) -> Any:
        def run() -> None:
            aligned[0, PASSED.value, 0, 1] += 1000

        return SimpleNamespace(run=run)

    def call() -> None:
        number = len(made)
        trace[0, 1, number] = torch.tensor([3000, 5000, 7])
        trace[0, 2, number] = torch.tensor([4000, 0, 8])
        made.append(number)

    monkeypatch.setattr(watch, "_barrier_launch", barrier)
    events = watch.trace(call, [torch.zeros_like(trace), trace])
    assert len(made) == 1 + (1 if kind == "interpreter" else WARM_CALLS)
    one, moment = events
    assert one == pytest.approx((1, 0, 1, 7, (3000 - origin) * microseconds, (5000 - origin) * microseconds))
    assert moment == pytest.approx((1, 0, 2, 8, *[(4000 - origin) * microseconds] * 2))


@pytest.mark.parametrize(
    ("world_size", "left", "sent"),
    [(4, 1 << 40, [MOST_SENT]), (4, 6 * LEAST_SENT, [LEAST_SENT]), (4, 6 * LEAST_SENT - 1, []), (1, 1 << 40, [])],
    ids=["all at once", "an inbox of each rank and a source fit", "a full heap", "one rank"],
)
def test_a_copy_reads_and_writes_and_all_peers_send_what_the_heap_has_left_or_nothing(
    monkeypatch: pytest.MonkeyPatch, world_size: int, left: int, sent: list[int]
) -> None:
    """An exchange takes 100 µs, a copy 1000 and a GEMM 2000."""
    told: list[int] = []
    monkeypatch.setattr(rates, "_exchange_time", lambda heap, piece: told.append(piece) or 100.0)
    monkeypatch.setattr(rates, "_copy_time", lambda device: 1000.0)
    monkeypatch.setattr(rates, "_gemm_time", lambda device, dtype: 2000.0)
    heap: Any = SimpleNamespace(world_size=world_size, left=left, device="cpu")
    links = {"links": (world_size - 1) * sent[0] / 100} if sent else {}
    assert measured_rates(heap, "bf16") == {**links, "memory": 2 * COPIED / 1000, "flops": 2 * SIDE**3 / 2000}
    assert told == sent
