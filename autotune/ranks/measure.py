"""The stopwatch: what every rank sees of one operator call, with cold caches and all ranks lined up."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from autotune.environment import Machine
from autotune.errors import MissedMeeting
from autotune.heap.arena import SymmetricHeap
from autotune.kernels.launching.plan import Launch
from autotune.kernels.primitives.meeting import meet_kernel
from autotune.outcome import Latency
from autotune.ranks.early_stop import slowest

FLUSH_OVER_L2 = 2
"""The L2 is evicted by reading this many times its size. Reading, not writing: what is written stays behind as dirty
lines, and their way out costs a memory-bound kernel that comes next up to the time of writing a whole L2."""

SLOWEST_CLOCK_GHZ = 2.0
"""Cycles a nanosecond that ``torch.cuda._sleep`` is told; GPUs clock lower, so that it sleeps rather longer."""


class Stopwatch:
    """Times calls on one rank. All ranks make the same calls, in the same order, with the same numbers.

    On GPUs an iteration is: evict the L2; sleep on the device for as long as the host needs to enqueue the call;
    meet the other ranks in a kernel; record; call; record. Nothing waits for the host between the two events, so that
    the time is the device's. On CPUs the ranks meet in a host barrier and a host clock is read.
    """

    def __init__(self, heap: SymmetricHeap, machine: Machine, spin_limit: int) -> None:
        """Takes a few counters from ``heap``; collective."""
        self._heap = heap
        self._machine = machine
        self._counters = heap.allocate((heap.world_size + 3,), torch.int32)
        self._status = self._counters[2:3]
        self._begin_anew()
        self._meet = Launch(
            meet_kernel, 1,
            {
                "counters": self._counters[3:], "state": self._counters[:2], "rank": heap.rank,
                "heap_bases": heap.bases, "status": self._status, "spin_limit": spin_limit,
                "WORLD": heap.world_size, "LAST": True,
            },
            {"num_warps": 1},
        )  # fmt: skip
        self._flush = torch.zeros(machine.l2_bytes * FLUSH_OVER_L2 // 4, device=heap.device)
        self._sink = torch.zeros((), device=heap.device)

    def time(self, call: Callable[[], None], *, warmup: int, iterations: int) -> list[float]:
        """Microseconds of each of ``iterations`` calls on this rank, after ``warmup`` that are not kept. Collective.

        Raises MissedMeeting where another rank did not come to a meeting.
        """
        self._begin_anew()
        if self._machine.is_interpreter:
            return [self._host_time(call) for _ in range(warmup + iterations)][warmup:]
        times = self._device_times(call, warmup, iterations)
        if self._status.item():
            raise MissedMeeting("the ranks did not meet before a timed call: one was stuck, or had failed")
        return times

    def _begin_anew(self) -> None:
        """Forget meetings that a rank has missed, as one does that raised while it was timed."""
        self._heap.barrier()
        self._counters.zero_()
        self._heap.barrier()

    def _host_time(self, call: Callable[[], None]) -> float:
        self._heap.meet()
        begin = time.perf_counter()
        call()
        return (time.perf_counter() - begin) * 1e6

    def _device_times(self, call: Callable[[], None], warmup: int, iterations: int) -> list[float]:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        enqueueing = time.perf_counter() - begin
        torch.cuda.synchronize()
        cycles = int(min(max(3 * enqueueing, 50e-6), 2e-3) * SLOWEST_CLOCK_GHZ * 1e9)
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(warmup + iterations)]
        for before, after in events:
            torch.sum(self._flush, dim=0, out=self._sink)
            torch.cuda._sleep(cycles)
            self._meet.run()
            before.record()
            call()
            after.record()
        torch.cuda.synchronize()
        return [before.elapsed_time(after) * 1e3 for before, after in events[warmup:]]


def combine(by_rank: Sequence[Sequence[float]]) -> Latency:
    """One latency from every rank's times of the same iterations: of each iteration the slowest rank counts."""
    counted = slowest(by_rank)
    skews = [max(times) - min(times) for times in zip(*by_rank, strict=True)]
    if len(counted) > 1:
        fifths = statistics.quantiles(counted, n=5, method="inclusive")
        low, high = fifths[0], fifths[3]
    else:
        low = high = counted[0]
    return Latency(
        median=statistics.median(counted),
        low=low,
        high=high,
        skew=statistics.median(skews),
        iterations=len(counted),
        by_rank=tuple(statistics.median(times) for times in by_rank),
    )
