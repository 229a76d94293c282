"""The copy engines' way: the library's GEMM in chunks, each peer's rows sent by device copies, one sum at the end."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from autotune.kernels.gemm.library import multiply, scales_of_rows
from autotune.kernels.gemm_reduce_scatter import device
from autotune.kernels.gemm_reduce_scatter.library import Parts, SumCall, SummingWay
from autotune.kernels.gemm_reduce_scatter.modes import CopyEngine, ScatterTask
from autotune.kernels.launching.one_program import barrier_launch
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.streams import on, side_stream, wait
from autotune.kernels.launching.tensors import Allocate, Run


class CopyEngineWay(SummingWay[CopyEngine]):
    def scratch(self, task: ScatterTask, mode: CopyEngine, shared: Allocate, own: Allocate) -> Parts:
        problem = task.problem
        return self.parts(problem, shared, product=own, inbox=(problem.world_size, problem.rows, problem.n))

    def launches(self, call: SumCall[CopyEngine]) -> list[Launch]:
        """All ranks wait for each other, on the device, until every inbox may be written to. The other launch sums our
        inbox and our own part of our rows.
        """
        scratch, rows = call.scratch, call.problem.rows
        own = scratch.product[call.rank * rows : (call.rank + 1) * rows]
        enter = barrier_launch(call, scratch.ready)
        return [enter, self.sum_launch(call, device.sum_kernel, own=own, inbox=scratch.inbox)]

    def run(self, call: SumCall[CopyEngine], launches: list[Launch]) -> Run:
        return Copies(call, launches)


def chunks(rank: int, rows: int, world_size: int, transfer_rows: int) -> Iterator[tuple[int, int]]:
    """First and end row of each chunk of A, at most ``transfer_rows`` rows and alike: rank + 1's first, ``rank``'s own
    last. Rounded up to 16 rows, chunks of 1023 would end in one of a single row, which reads all of B.
    """
    m = rows * world_size
    first, unit = (rank + 1) * rows, math.ceil(m / math.ceil(m / transfer_rows))
    for begin in range(0, m, unit):
        at, length = (first + begin) % m, min(unit, m - begin)
        yield at, min(at + length, m)
        if at + length > m:
            yield 0, at + length - m


def parcels(begin: int, end: int, rank: int, rows: int) -> Iterator[tuple[int, int, int]]:
    """The peers that own rows of a chunk, with the first and end row of what they own there."""
    for owner in range(begin // rows, (end - 1) // rows + 1):
        if owner != rank:
            yield owner, max(begin, owner * rows), min(end, (owner + 1) * rows)


@dataclass(frozen=True)
class _Chunk:
    """Rows of A with their scales, where their product goes, and the copies from there into the owners' inboxes."""

    a: torch.Tensor
    scale_a: torch.Tensor | None
    out: torch.Tensor
    copies: list[tuple[torch.Tensor, torch.Tensor]]


class Copies:
    """The copies cost no multiprocessor, and hide behind the next chunks' GEMMs; those alternate between streams, so
    that one's tail hides in the next. Own rows come last and stay; then a kernel of ours sums all parts.

    That kernel begins after our own copies, and waits for nothing but the peers' kernels to begin: though its programs
    may fill the GPU while they wait, nobody waits for anything behind them.
    """

    def __init__(self, call: SumCall[CopyEngine], launches: list[Launch]) -> None:
        heap, problem, tensors, scratch = call.heap, call.problem, call.tensors, call.scratch
        assert heap is not None, "a call that is only compiled is not run"
        self._problem, self._tensors = problem, tensors
        self._enter, self._sum = launches
        rank, rows = heap.rank, problem.rows
        inboxes = [heap.peer(scratch.inbox, owner)[rank] for owner in range(problem.world_size)]
        self._chunks = []
        for begin, end in chunks(rank, rows, problem.world_size, call.knobs.transfer_rows):
            copies = [
                (inboxes[owner][low - owner * rows : high - owner * rows], scratch.product[low:high])
                for owner, low, high in parcels(begin, end, rank, rows)
            ]
            here = slice(begin, end)
            scales = scales_of_rows(problem, tensors.scale_a, here)
            self._chunks.append(_Chunk(tensors.a[here], scales, scratch.product[here], copies))
        self._cuda = heap.device.type == "cuda"
        self._copying = side_stream(heap, "copies")
        self._multiplying = [side_stream(heap, f"gemm {each}") for each in range(call.knobs.gemm_streams)]

    def __call__(self) -> None:
        """Enqueue one call; what the caller enqueues next on its stream comes after all of it."""
        main = torch.cuda.current_stream() if self._cuda else None
        wait([self._copying, *self._multiplying], [main])
        with on(self._copying):
            self._enter.run()
        for number, chunk in enumerate(self._chunks):
            stream = self._multiplying[number % len(self._multiplying)]
            with on(stream):
                multiply(self._problem, chunk.a, chunk.scale_a, self._tensors, chunk.out)
            if chunk.copies:
                wait([self._copying], [stream])
            with on(self._copying):
                for inbox, part in chunk.copies:
                    inbox.copy_(part)
        wait([main], [self._copying, *self._multiplying])
        self._sum.run()
