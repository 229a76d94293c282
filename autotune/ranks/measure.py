"""The stopwatch: times operator calls on every rank, with cold caches and all ranks lined up."""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from autotune.errors import MissedBarrier
from autotune.heap.arena import SymmetricHeap
from autotune.heap.status import new_status
from autotune.kernels.launching.one_program import empty_launches
from autotune.kernels.launching.plan import Launch
from autotune.kernels.primitives.barrier import barrier_kernel
from autotune.kernels.primitives.trace import KINDS, MOST_EVENTS, PASSED
from autotune.machine import Machine
from autotune.outcome import Latency
from autotune.ranks.clocks import clocks_of
from autotune.ranks.early_stop import slowest
from autotune.ranks.marks import Marks
from autotune.ranks.protocol import Stamped

FLUSH_OVER_CACHE = 2
"""The last level of cache is evicted by reading this many times its size. Reading, not writing: written lines stay
dirty, and writing them back would slow a following memory-bound kernel by up to a whole cache's write time.
"""

SLOWEST_CLOCK_GHZ = 2.0
"""Cycles per nanosecond assumed for ``torch.cuda._sleep``; GPUs clock lower, so that it sleeps somewhat longer."""


HOST_CALLS, FEW_HOST_CALLS = 20, 3
"""Calls that the host enqueues back to back to time that: so few that it never waits for room in the device's queue.
Long calls, which it is always ahead of, are worth few.
"""

HOST_BURSTS = 3
"""Bursts of HOST_CALLS, of which the quickest counts: the first finds the host's caches full of other work, and the
library's eager calls, the longest, lose most by that.
"""

HOST_AHEAD_FROM = 300e-6
"""Seconds of work on the device from which on the host is ahead of a call anyway."""

BACK_TO_BACK_FROM = 500e-6
"""Seconds of work from which on calls follow each other with nothing but the barrier between them, as in a program that
runs them back to back. Evicting the L2 and sleeping are a tenth of the time then, in which a GPU at its power limit
recovers: so measured, BSP took 749 µs for GEMM + reduce-scatter m=2048 n=8192 k=28672; back to back it took 766 by this
stopwatch, 794 to 830 by ``bench/outside.py`` (2 x H200, 2026-11-22).
"""

SHORTEST_PAUSE, LONGEST_PAUSE = 50e-6, 2e-3
"""Seconds that the device sleeps before a call, so that the host is ahead of it: the time of the call itself helps. The
shortest that does is tried first, and doubled whenever it did not. Before that, an all-gather alone once took 87 µs,
one of four times the rows 15 (AG m=16, 64, 2 x H100, 2026-11-25): a slow host is the likely cause. As such a host stays
slow, as a rule, the next timing begins with the pause that this one came to; each that was long enough is halved.
"""

MARKING_PAUSE = 10e-3
"""Seconds that the device sleeps before a call whose operations are marked, which takes the host longer."""

WARM_CALLS = 4
"""Calls before a traced one: the third is captured, and replayed from then on. And before host overhead is timed."""

CLOCK_CYCLES = 1_000_000
"""Cycles by which a GPU's clock is measured: half a millisecond, of which events resolve a thousandth."""

ATTEMPTS = 5
"""Attempts at an isolated call that all ranks begin in time."""

AHEAD = 1e-3
"""Seconds between the ranks' agreement on a start and the start, so that all of them know it in time."""


@dataclass(frozen=True)
class Timed:
    """Times of some calls on one rank, in microseconds."""

    device: list[float]
    """Device time per call; wall time under the interpreter."""
    host: list[float]
    """Time to enqueue, for some of the calls; none under the interpreter, which does not enqueue."""


class Stopwatch:
    """Times calls on one rank. All ranks make the same calls in the same order with the same numbers.

    On GPUs an iteration is: evict the L2; sleep on the device until the host is ahead; pass a barrier of all ranks in a
    kernel; record; call; record. Nothing between the two events waits for the host, so the time is the device's. Long
    calls, which the host is ahead of anyway, evict and sleep before the first one only. On CPUs the ranks pass a host
    barrier and read a host clock.
    """

    def __init__(self, heap: SymmetricHeap, machine: Machine, spin_limit: int) -> None:
        """Allocates a few counters on ``heap``; collective."""
        self._heap = heap
        self._machine = machine
        self._epoch_counter = heap.allocate((1,), torch.int64)
        self._counters = heap.allocate((heap.world_size,), torch.int32)
        self._status = new_status(heap)
        self._begin_anew()
        self._barrier = self._barrier_launch(spin_limit)
        self._spin_limit = spin_limit
        self._flush = torch.zeros(machine.cache_bytes * FLUSH_OVER_CACHE // 4, device=heap.device)
        self._sink = torch.zeros((), device=heap.device)
        self._shortest_pause = SHORTEST_PAUSE
        self._ahead_of_first = clocks_of(heap.group)

    def _barrier_launch(self, spin_limit: int, trace: torch.Tensor | None = None) -> Launch:
        heap = self._heap
        arguments = {
            "counters": self._counters, "epoch_counter": self._epoch_counter, "rank": heap.rank,
            "heap_bases": heap.bases, "status": self._status, "spin_limit": spin_limit, "trace": trace,
            "WORLD": heap.world_size, "FINISH": True, "BY_STORES": not self._machine.has_peer_atomics,
        }  # fmt: skip
        return Launch(barrier_kernel, 1, arguments, {"num_warps": 1})

    def time(self, call: Callable[[], None], *, warmup: int, iterations: int) -> Timed:
        """Times of ``iterations`` calls on this rank, after ``warmup`` uncounted ones. Collective.

        Raises MissedBarrier where another rank did not come to a barrier.
        """
        self._begin_anew()
        if self._machine.is_interpreter:
            return Timed([self._host_time(call) for _ in range(warmup + iterations)][warmup:], [])
        timed = self._device_times(call, warmup, iterations)
        if self._status[0].item():
            raise MissedBarrier("a rank missed the barrier before a timed call: it was stuck, or had failed")
        return timed

    def _begin_anew(self) -> None:
        """Forget barriers that a rank has missed, as one does that raised while it was timed."""
        self._heap.barrier()
        self._epoch_counter.zero_()
        self._counters.zero_()
        self._status.zero_()
        self._heap.barrier()

    def time_isolated(self, call: Callable[[], None], calls: int) -> list[float]:
        """Microseconds of each of ``calls`` isolated calls, from the ranks' common start to this rank's end; none under
        the interpreter, where it would be the same time again.
        """
        if self._machine.is_interpreter:
            return []
        ahead = self._ahead_of_first()
        return [self._isolated_time(call, ahead) for _ in range(calls)]

    def time_overhead(self, call: Callable[[], object], calls: int) -> tuple[list[float], list[float]]:
        """Microseconds of a ``call`` that enqueues nothing, timed as calls that do: isolated, and back to back. Each
        less the same of no call at all; none under the interpreter. Collective.
        """

        def overhead() -> None:
            call()

        def nothing() -> None:
            pass

        for _ in range(WARM_CALLS):
            overhead()
        if self._machine.is_interpreter:
            return [], []
        ahead = self._ahead_of_first()
        isolated = [self._isolated_time(overhead, ahead) - self._isolated_time(nothing, ahead) for _ in range(calls)]
        return isolated, [self._enqueueing(overhead, HOST_CALLS) - self._enqueueing(nothing, HOST_CALLS)]

    def time_barrier(self, warmup: int, calls: int) -> dict[str, tuple[float, ...]]:
        """Times of a launch that is nothing but the barrier of all ranks, and of an empty one. Collective."""
        [empty] = empty_launches(1)
        runs = {"barrier": self._barrier.run, "empty": empty.run}
        return {
            name: tuple(self.time(run, warmup=warmup, iterations=calls).device) for name, run in runs.items()
        }  # fmt: skip

    def trace(self, call: Callable[[], None], traces: Sequence[torch.Tensor]) -> tuple[Stamped, ...]:
        """The events of one traced call on this rank, in microseconds since all ranks passed a barrier. Collective.

        The ranks' clocks differ; each counts from its own exit of the barrier, a link's latency apart at most.
        """
        self._begin_anew()
        shape = (1, KINDS.value, MOST_EVENTS.value, 3)
        aligned = torch.zeros(shape, dtype=torch.int64, device=self._heap.device)
        barrier = self._barrier_launch(self._spin_limit, aligned)
        for _ in range(1 if self._machine.is_interpreter else WARM_CALLS):
            barrier.run()
            call()
        for trace in (aligned, *traces):
            trace.zero_()
        self._heap.barrier()
        if not self._machine.is_interpreter:
            torch.sum(self._flush, dim=0, out=self._sink)
            torch.cuda._sleep(int(LONGEST_PAUSE * SLOWEST_CLOCK_GHZ * 1e9))
        barrier.run()
        call()
        self._heap.barrier()
        passed = int(aligned[0, PASSED.value, 0, 1].item())
        origin = passed if not self._machine.is_interpreter else -int(self._latest(-passed))  # one clock
        tick = 10.0 if self._machine.kind == "hip" else 1.0
        return tuple(
            event for number, trace in enumerate(traces) for event in _events(number, trace.cpu(), origin, tick)
        )  # fmt: skip

    def trace_operations(self, call: Callable[[], None]) -> tuple[Stamped, ...]:
        """Torch's operations in a call on this rank, in microseconds since all ranks passed a barrier. Collective.

        The call must be new: its third time may be the replay of a graph, which shows nothing.
        """
        self._begin_anew()
        with Marks(self._heap.device):  # a first call of anything takes longer
            call()
        marks = Marks(self._heap.device)
        self._heap.barrier()
        if not self._machine.is_interpreter:
            torch.sum(self._flush, dim=0, out=self._sink)
            torch.cuda._sleep(int(MARKING_PAUSE * SLOWEST_CLOCK_GHZ * 1e9))
            self._barrier.run()
        begin = marks.now()
        with marks:
            call()
        end = marks.now()
        self._heap.barrier()
        return marks.events(begin, end)

    def delayed(self, call: Callable[[], None], seconds: float) -> Callable[[], None]:
        """``call`` after a pause, on the device where there is one."""
        if self._machine.is_interpreter:
            pause = functools.partial(time.sleep, seconds)
        else:
            pause = functools.partial(torch.cuda._sleep, int(seconds * self.clock() * 1e6))

        def pause_and_call() -> None:
            pause()
            call()

        return pause_and_call

    def clock(self) -> float:
        """MHz at which this rank's GPU runs now; 0 under the interpreter."""
        if self._machine.is_interpreter:
            return 0.0
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(CLOCK_CYCLES // 10)  # so that both events lie behind the host
        before.record()
        torch.cuda._sleep(CLOCK_CYCLES)
        after.record()
        torch.cuda.synchronize()
        milliseconds: float = before.elapsed_time(after)
        return CLOCK_CYCLES / (milliseconds * 1e3)

    def _isolated_time(self, call: Callable[[], None], ahead: float) -> float:
        """Time of a call that no rank began too late; the last attempt if every one had such a rank. The start is a
        time of rank 0's clock, of which this rank's is ``ahead``.
        """
        for _ in range(ATTEMPTS):
            torch.sum(self._flush, dim=0, out=self._sink)
            self._heap.barrier()
            begin = self._latest(time.monotonic() - ahead + AHEAD) + ahead
            late = time.monotonic() - begin
            while time.monotonic() < begin:
                pass
            call()
            torch.cuda.synchronize()
            took = time.monotonic() - begin
            if self._latest(late) < 0:
                break
        return took * 1e6

    def _latest(self, value: float) -> float:
        """The largest on any rank."""
        largest = torch.tensor([value], dtype=torch.float64, device="cpu")
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self._heap.group)
        return largest.item()

    def _host_time(self, call: Callable[[], None]) -> float:
        self._heap.host_barrier()
        begin = time.perf_counter()
        call()
        return (time.perf_counter() - begin) * 1e6

    def _device_times(self, call: Callable[[], None], warmup: int, iterations: int) -> Timed:
        # The quicker of two calls: one of them may be the call that is captured, to be replayed from then on.
        enqueueing, working = min(_enqueued_and_worked(call) for _ in range(2))
        back_to_back, host_calls = self._way_of(working)
        # The sleep is as short as it may be: an idle GPU gathers power and cools. BSP's eager calls, which enqueue for
        # long, took 1372 µs after a sleep three times as long as that, 1475 after a short one (AG m=4096, 2 x H200).
        pause, overtaken = min(max(3 * enqueueing - working, self._shortest_pause), LONGEST_PAUSE), False
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(warmup + iterations)]
        for number, (before, after) in enumerate(events):
            if number == 0 or not back_to_back:
                torch.sum(self._flush, dim=0, out=self._sink)
                torch.cuda._sleep(int(pause * SLOWEST_CLOCK_GHZ * 1e9))
            self._barrier.run()
            before.record()
            call()
            after.record()
            # The device was there before the host had enqueued the call: it sleeps longer from now on.
            if before.query():
                pause, overtaken = min(2 * pause, LONGEST_PAUSE), True
        self._shortest_pause = pause if overtaken else max(self._shortest_pause / 2, SHORTEST_PAUSE)
        torch.cuda.synchronize()
        device = [before.elapsed_time(after) * 1e3 for before, after in events[warmup:]]
        return Timed(device, [self._enqueueing(call, host_calls)])

    def _way_of(self, working: float) -> tuple[bool, int]:
        """True if calls are timed back to back, and the number of calls by which the host is timed, for a call of
        ``working`` seconds on this rank. Collective: ranks that disagreed would wait in a kernel for calls that others
        never make.
        """
        longest = self._latest(working)
        return longest >= BACK_TO_BACK_FROM, HOST_CALLS if longest < HOST_AHEAD_FROM else FEW_HOST_CALLS

    def _enqueueing(self, call: Callable[[], None], calls: int) -> float:
        """Microseconds that the host takes per call to enqueue calls back to back, as an eager program does."""
        quickest = math.inf
        for _ in range(HOST_BURSTS if calls == HOST_CALLS else 1):
            begin = time.perf_counter()
            for _ in range(calls):
                call()
            quickest = min(quickest, time.perf_counter() - begin)
            torch.cuda.synchronize()
        return quickest / calls * 1e6


def _events(launch: int, trace: torch.Tensor, origin: int, nanoseconds: float) -> Iterator[Stamped]:
    """The events in a launch's stamps: one without an end is a moment."""
    for place in trace[..., 0].nonzero().tolist():
        program, kind, event = place
        begin, end, number = trace[program, kind, event].tolist()
        times = ((each - origin) * nanoseconds / 1e3 for each in (begin, end or begin))
        yield (launch, program, kind, number, *times)


def _enqueued_and_worked(call: Callable[[], None]) -> tuple[float, float]:
    """Seconds until a call on an idle device is enqueued, and from then until it is done."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    enqueued = time.perf_counter()
    torch.cuda.synchronize()
    return enqueued - begin, time.perf_counter() - enqueued


def combine(
    by_rank: Sequence[Sequence[float]], host: Sequence[Sequence[float]] = (), isolated: Sequence[Sequence[float]] = ()
) -> Latency:
    """Combine all ranks' times of the same iterations into one latency: per iteration the slowest rank counts.

    Of the host's times the slowest rank's median counts, of the isolated calls the median over each call's slowest
    rank.
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
