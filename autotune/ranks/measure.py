"""The stopwatch: what every rank sees of one operator call, with cold caches and all ranks lined up."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from autotune.errors import MissedBarrier
from autotune.heap.arena import SymmetricHeap
from autotune.kernels.launching.plan import Launch
from autotune.kernels.primitives.barrier import barrier_kernel
from autotune.machine import Machine
from autotune.outcome import Latency
from autotune.ranks.early_stop import slowest

FLUSH_OVER_L2 = 2
"""The L2 is evicted by reading this many times its size. Reading, not writing: what is written stays behind as dirty
lines, and their way out costs a memory-bound kernel that comes next up to the time of writing a whole L2."""

SLOWEST_CLOCK_GHZ = 2.0
"""Cycles a nanosecond that ``torch.cuda._sleep`` is told; GPUs clock lower, so that it sleeps rather longer."""


HOST_CALLS = 30
"""Calls whose enqueueing the host times: the first ones, before the launches that wait fill the device's queue and the
host waits for the device."""

AHEAD = 1e-3
"""Seconds from the moment at which the ranks agree on a start to the start: until then all have heard of it."""


@dataclass(frozen=True)
class Timed:
    """Microseconds of some calls on one rank."""

    device: list[float]
    """Of each call; under the interpreter wall time."""
    host: list[float]
    """What enqueueing took, for some of the calls; none under the interpreter, where calls are not enqueued."""


class Stopwatch:
    """Times calls on one rank. All ranks make the same calls, in the same order, with the same numbers.

    On GPUs an iteration is: evict the L2; sleep on the device for as long as the host needs to enqueue the call;
    pass a barrier of all ranks in a kernel; record; call; record. Nothing waits for the host between the two events,
    so that the time is the device's. On CPUs the barrier is the host's and a host clock is read.
    """

    def __init__(self, heap: SymmetricHeap, machine: Machine, spin_limit: int) -> None:
        """Takes a few counters from ``heap``; collective."""
        self._heap = heap
        self._machine = machine
        self._counters = heap.allocate((heap.world_size + 3,), torch.int32)
        self._status = self._counters[2:3]
        self._begin_anew()
        self._barrier = Launch(
            barrier_kernel, 1,
            {
                "counters": self._counters[3:], "epoch_counter": self._counters[:2], "rank": heap.rank,
                "heap_bases": heap.bases, "status": self._status, "spin_limit": spin_limit,
                "WORLD": heap.world_size, "FINISH": True,
            },
            {"num_warps": 1},
        )  # fmt: skip
        self._flush = torch.zeros(machine.l2_bytes * FLUSH_OVER_L2 // 4, device=heap.device)
        self._sink = torch.zeros((), device=heap.device)

    def time(self, call: Callable[[], None], *, warmup: int, iterations: int) -> Timed:
        """Times of ``iterations`` calls on this rank, after ``warmup`` that are not kept. Collective.

        Raises MissedBarrier where another rank did not come to a barrier.
        """
        self._begin_anew()
        if self._machine.is_interpreter:
            return Timed([self._host_time(call) for _ in range(warmup + iterations)][warmup:], [])
        timed = self._device_times(call, warmup, iterations)
        if self._status.item():
            raise MissedBarrier("a rank missed the barrier before a timed call: it was stuck, or had failed")
        return timed

    def _begin_anew(self) -> None:
        """Forget barriers that a rank has missed, as one does that raised while it was timed."""
        self._heap.barrier()
        self._counters.zero_()
        self._heap.barrier()

    def time_isolated(self, call: Callable[[], None], calls: int) -> list[float]:
        """Microseconds of each of ``calls`` single calls on an idle device, from the ranks' common start to this rank's
        end; none under the interpreter, where it would be the same time again.
        """
        if self._machine.is_interpreter:
            return []
        return [self._isolated_time(call) for _ in range(calls)]

    def _isolated_time(self, call: Callable[[], None]) -> float:
        torch.sum(self._flush, dim=0, out=self._sink)
        self._heap.barrier()
        # All processes of a host share the monotonic clock.
        start = torch.tensor([time.monotonic() + AHEAD], dtype=torch.float64)
        dist.all_reduce(start, dist.ReduceOp.MAX, group=self._heap.group)
        begin = start.item()
        while time.monotonic() < begin:
            pass
        call()
        torch.cuda.synchronize()
        return (time.monotonic() - begin) * 1e6

    def _host_time(self, call: Callable[[], None]) -> float:
        self._heap.meet()
        begin = time.perf_counter()
        call()
        return (time.perf_counter() - begin) * 1e6

    def _device_times(self, call: Callable[[], None], warmup: int, iterations: int) -> Timed:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        enqueueing = time.perf_counter() - begin
        torch.cuda.synchronize()
        cycles = int(min(max(3 * enqueueing, 50e-6), 2e-3) * SLOWEST_CLOCK_GHZ * 1e9)
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(warmup + iterations)]
        host = []
        for before, after in events:
            torch.sum(self._flush, dim=0, out=self._sink)
            torch.cuda._sleep(cycles)
            self._barrier.run()
            before.record()
            begin = time.perf_counter()
            call()
            host.append((time.perf_counter() - begin) * 1e6)
            after.record()
        torch.cuda.synchronize()
        device = [before.elapsed_time(after) * 1e3 for before, after in events[warmup:]]
        return Timed(device, host[:HOST_CALLS])


def combine(
    by_rank: Sequence[Sequence[float]], host: Sequence[Sequence[float]] = (), isolated: Sequence[Sequence[float]] = ()
) -> Latency:
    """One latency from every rank's times of the same iterations: of each iteration the slowest rank counts.

    Of the host's times the slowest rank's median, of the isolated calls the median of each one's slowest rank.
    """
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
        host=max((statistics.median(times) for times in host if times), default=None),
        isolated=statistics.median(alone) if (alone := slowest(isolated)) else None,
    )
