"""Bursts: calls back to back on changing inputs, ranks apart in time, every result compared."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterator

import torch

from autotune.heap.arena import SymmetricHeap
from autotune.heap.interpreter import first_poll_held
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.streams import on, side_stream, wait
from autotune.kernels.primitives.probes import THREADS, occupying_kernel
from autotune.ranks.measure import SLOWEST_CLOCK_GHZ
from autotune.workloads.input_sets import InputSets, poison
from autotune.workloads.interface import Operation
from autotune.workloads.tolerance import Error

ONE_BY_ONE, ONE_LATE, ONE_EARLY, ONE_CROWDED = range(4)
"""Ways to set ranks apart: they start one after the other and then run freely; one of them is late to every call, so
that the others run ahead as far as the kernels let them; one of them runs ahead of the others; or one of them is slow
within its kernels. Late interpreted ranks are slow and held, too, so the last way is for GPUs alone.
"""

HELD = 2.0
"""Pauses for which a late interpreted rank is held within the first call of a burst, before its first poll: as long as
a peer needs to end its call, and for what it sends in the next.
"""

ROOM = 16
"""Halves of multiprocessors that a full crowd leaves: a kernel's first programs begin there, and send, and the others
come when the crowd is gone. Every other crowd fills half of each multiprocessor, where warps then take turns.
"""

CROWDED = 3.0
"""Pauses for which a crowd stays: as long as a peer needs for its call, and for what it sends in the next."""

HEAD_START = 2e-5
"""Seconds between a crowd and the call that it is to be there before."""

NO_CONTEXT = contextlib.nullcontext()


class Bursts:
    """Runs bursts on one rank; all ranks make the same calls. Within a burst nothing waits for the host or lines the
    ranks up: only the kernels' own waits keep one call from running into another.
    """

    def __init__(
        self, heap: SymmetricHeap, operation: Operation, run: Callable[[], None], sets: InputSets, seed: int,
        stagger: float, pause: float,
    ) -> None:  # fmt: skip
        """Ranks that start one by one are ``stagger`` seconds apart; a late rank is ``pause`` seconds late per call."""
        self._heap, self._operation, self._run, self._sets = heap, operation, run, sets
        self._seed, self._stagger, self._pause = seed, stagger, pause
        crowds = heap.device.type == "cuda" and torch.version.hip is None  # untried on AMD
        self._crowds = _crowds(heap.device, CROWDED * pause) if crowds else []
        self._kinds = 4 if crowds else 3

    def errors(self, count: int, calls: int) -> Iterator[Error]:
        """The error of each call of ``count`` bursts of ``calls``, after which the last set is in place. Collective."""
        for burst in range(count):
            self._heap.barrier()  # no rank may still be comparing, or poisoning what another one writes to
            numbers = [(burst * calls + call) % self._sets.count for call in range(calls)]
            results = self._results(burst, numbers)
            self._heap.barrier()
            for number, outputs in zip(numbers, results, strict=True):
                yield self._sets.error_of(outputs, number)
        self._sets.put(self._sets.count - 1)

    def _results(self, burst: int, numbers: list[int]) -> list[list[torch.Tensor]]:
        """The outputs of the calls of a burst."""
        pattern, rank, world = burst % self._kinds, self._heap.rank, self._heap.world_size
        chosen = (self._seed + burst // self._kinds) % world == rank
        late = pattern == ONE_LATE and chosen or pattern == ONE_EARLY and not chosen
        slow = late and self._heap.device.type == "cpu"
        if pattern == ONE_BY_ONE:
            time.sleep(self._stagger * ((rank + self._seed) % world))
        results = []
        for call, number in enumerate(numbers):
            self._sets.put(number)
            for output in self._operation.outputs():
                poison(output)
            if late:
                self._sleep(self._pause)
            if pattern == ONE_CROWDED and chosen:
                self._crowd(call)
            with (
                _slowed() if slow else NO_CONTEXT,
                first_poll_held(HELD * self._pause) if slow and call == 0 else NO_CONTEXT,
            ):
                self._run()
            results.append([output.clone() for output in self._operation.outputs()])
        return results

    def _crowd(self, call: int) -> None:
        """A crowd beside the call that comes next, there before it is."""
        beside = side_stream(self._heap, "crowd")
        wait([beside], [torch.cuda.current_stream()])
        with on(beside):
            self._crowds[call % len(self._crowds)].run()
        self._sleep(HEAD_START)

    def _sleep(self, seconds: float) -> None:
        """Sleep on the GPU if there is one, so that the host goes on enqueueing."""
        if self._heap.device.type == "cuda":
            torch.cuda._sleep(int(seconds * SLOWEST_CLOCK_GHZ * 1e9))
        else:
            time.sleep(seconds)


def _crowds(device: torch.device, seconds: float) -> list[Launch]:
    """A full crowd, and one that fills half of each multiprocessor."""
    properties = torch.cuda.get_device_properties(device)
    units, options = properties.multi_processor_count, {"num_warps": THREADS // properties.warp_size}
    arguments = {"nanoseconds": int(seconds * 1e9)}
    return [Launch(occupying_kernel, programs, arguments, options) for programs in (2 * units - ROOM, units)]


@contextlib.contextmanager
def _slowed() -> Iterator[None]:
    """A thread beside the interpreter takes half of its time, asleep: a C function called so keeps Python's lock.

    Interpreted ranks whose waits are over run at the same speed to the end of the call: whatever one might overwrite,
    the other has just read. GPUs differ by themselves.
    """
    over, turn = threading.Event(), round(sys.getswitchinterval() * 1e6)

    def hold_up() -> None:
        while not over.is_set():
            ctypes.pythonapi.usleep(turn)

    thread = threading.Thread(target=hold_up, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
