"""CUDA graphs: a baseline that is measured as one, and operator calls, which replay from graphs of their own."""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import os
import warnings
import weakref
from collections.abc import Iterator

import torch

from autotune.heap.arena import SymmetricHeap
from autotune.kernels.launching.streams import on, side_stream, wait
from autotune.kernels.launching.tensors import Run

LOG = logging.getLogger("autotune")

MOST_GRAPHS = 1024
"""Calls that replay, in a process: a model has some for each layer. The one that was not made for longest loses its
graph to a new one."""

DIRECT_CALLS = 2
"""Calls on the same addresses before one is captured: addresses that come once or twice are not worth it."""

CAPTURING = "graphs"
"""The stream on which calls are captured."""


def graphed(run: Run) -> Run:
    """``run`` captured as a CUDA graph; ``run`` itself without graphs (CPU). Collective if ``run`` is."""
    if not torch.cuda.is_available():
        return run
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    def replay() -> None:
        graph.replay()

    replay.captured = run  # type: ignore[attr-defined]  # the buffers it reads live as long as the graph
    return replay


def replayed(run: Run, heap: SymmetricHeap) -> Run:
    """``run``, a call at fixed addresses, replayed from a CUDA graph once it is made repeatedly.

    It must hold no collective of a library's, and keep what changes from call to call on the device. Itself on CPUs,
    on AMD, where this is untried, and where launches block. A graph pays for a single launch too: Triton's launcher
    takes the host 13 to 32 µs for the arguments of ours, a replay 3 to 6 (two H200, 2026-11-22).
    """
    blocking = os.environ.get("CUDA_LAUNCH_BLOCKING", "0") != "0"
    graphs = heap.device.type == "cuda" and torch.version.hip is None and not blocking
    return Replayed(run, heap) if graphs else run


def watched(run: Run, heap: SymmetricHeap, captured: Run) -> Run:
    """``run``, which calls ``captured`` first whenever the caller captures it into a CUDA graph."""
    if isinstance(run, Replayed):  # it asks anyway
        run.told = captured
        return run

    def call() -> None:
        if torch.cuda.is_current_stream_capturing():
            captured()
        run()

    return call if heap.device.type == "cuda" else run


class Replayed:
    """A call for the host's price of a graph's launch; what is enqueued next comes after all of it.

    The first calls are made directly: they compile, load, and make what libraries keep for a stream, the second one on
    the stream that is captured. So is a call while the caller captures, and every call once a capture has failed.
    """

    def __init__(self, run: Run, heap: SymmetricHeap) -> None:
        self._run, self._heap = run, heap
        self.told: Run | None = None
        """Called before each call that the caller captures."""
        self._direct = 0
        """Calls that were made directly, outside of a capture, since the last graph."""
        self._patience = DIRECT_CALLS
        """Direct calls before a graph is captured."""
        self._graphs = True
        self.graph: torch.cuda.CUDAGraph | None = None
        self.last = 0
        """The number of the graph's last replay among those of the process."""

    def __call__(self) -> None:
        """Enqueue one call on the current stream."""
        if torch.cuda.is_current_stream_capturing():
            if self.told is not None:
                self.told()
            self._run()
            return
        graph = self.graph or self._captured()
        if graph is None:
            self._directly()
            return
        self.last = next(_REPLAYS)
        graph.replay()

    def _directly(self) -> None:
        self._direct += 1
        if self._direct != self._patience:
            self._run()
            return
        here, side = torch.cuda.current_stream(), side_stream(self._heap, CAPTURING)
        wait([side], [here])
        with on(side):
            self._run()
        wait([here], [side])

    def _captured(self) -> torch.cuda.CUDAGraph | None:
        """The call as a graph, from now on; None where it is too early, or cannot be."""
        if self._direct < self._patience or not self._graphs:
            return None
        try:
            graph = self._capture()
        except RuntimeError as error:  # nothing has been enqueued: the call is made directly, and all that follow
            self._graphs = False
            LOG.warning("calls are made launch by launch, because a capture failed: %s", error)
            return None
        _make_room()
        self.graph = graph
        _REPLAYED.add(self)
        self._direct, self._patience = 0, 8 * self._patience  # whose graph is taken away is one of too many
        return graph

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Capture without the waits and the clean-up of ``torch.cuda.graph``: a program is at work here."""
        with on(side_stream(self._heap, CAPTURING)), _collector_away():
            pool = _pool()
            try:
                return _captured(self._run, pool)
            except RuntimeError:
                _mend(self._heap.device, pool)
                raise


def _captured(run: Run, pool: tuple[int, int]) -> torch.cuda.CUDAGraph:
    """``run`` as a graph, on the current stream."""
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")  # type: ignore[arg-type]
    try:
        run()
    finally:
        graph.capture_end()
    return graph


def _mend(device: torch.device, pool: tuple[int, int]) -> None:
    """Undo what torch leaves of a failed capture: an allocator that goes on recording, and a generator that takes every
    later random number for a captured one. The next capture that ends well, of nothing, resets the latter.
    """
    with contextlib.suppress(RuntimeError):  # it had not begun to record
        torch._C._cuda_endAllocateToPool(device.index, pool)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the graph is empty
        _captured(lambda: None, torch.cuda.graph_pool_handle())


_REPLAYED: weakref.WeakSet[Replayed] = weakref.WeakSet()
"""The calls that have a graph."""

_REPLAYS = itertools.count(1)


def _make_room() -> None:
    """Take the graphs away that were not replayed for longest."""
    while len(_REPLAYED) >= MOST_GRAPHS:
        oldest = min(_REPLAYED, key=lambda call: call.last)
        oldest.graph = None
        _REPLAYED.discard(oldest)


def _pool() -> tuple[int, int]:
    """The pool of temporaries allocated during a capture. All graphs share it, as no two of their calls overlap. A pool
    ends with its last graph, and torch refuses to use it again; then there is a new one.
    """
    alive = next((graph for call in list(_REPLAYED) if (graph := call.graph) is not None), None)
    return torch.cuda.graph_pool_handle() if alive is None else alive.pool()


@contextlib.contextmanager
def _collector_away() -> Iterator[None]:
    """Keeps the garbage collector away: it might free a graph or device memory, which would end a capture, too."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
