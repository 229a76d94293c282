"""The copy engines' way: peers' rows by device copies, the library's GEMM on each chunk as it arrives."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from autotune.kernels.all_gather_gemm.activation import multiply_and_activate
from autotune.kernels.all_gather_gemm.chunks import signal_chunk_kernel, wait_for_chunk_kernel
from autotune.kernels.all_gather_gemm.library import MultiplyingWay
from autotune.kernels.all_gather_gemm.library_modes import CopyEngine
from autotune.kernels.all_gather_gemm.scratch import Inbox
from autotune.kernels.all_gather_gemm.space import GatherTask
from autotune.kernels.all_gather_gemm.way import GatherCall, returned_of, scales_of_c
from autotune.kernels.launching.one_program import barrier_launch, seal_launch
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.streams import on, side_stream, wait
from autotune.kernels.launching.tensors import Allocate, Run
from autotune.sizes import even_part

Copies = list[tuple[torch.Tensor, torch.Tensor]]
"""Copies of rows of A, and of their scales: destination and source."""


def chunks_of(rows: int, transfer_rows: int, shrinking: bool) -> list[tuple[int, int]]:
    """First and end row of each chunk of a shard: ``transfer_rows`` each at most, and alike; or half of what is left,
    at least so many.
    """
    found, begin = [], 0
    unit = transfer_rows if shrinking else even_part(rows, transfer_rows)
    while begin < rows:
        halves = -(-(rows - begin) // (2 * unit)) if shrinking else 1
        end = min(begin + halves * unit, rows)
        found.append((begin, end))
        begin = end
    return found


def rounds(
    world_size: int, rows: int, transfer_rows: int, shrinking: bool
) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """The chunks in the order in which they travel: the ranks between sender and receiver, a number, the rows.

    In each round a rank has one sender and one receiver. Only the GEMM of the last chunks is not hidden behind other
    copies: with ``shrinking`` the shards of all rounds but the last one are whole, and its chunks get smaller.
    """
    for apart in range(1, world_size):
        whole = shrinking and apart < world_size - 1
        chunks = [(0, rows)] if whole else chunks_of(rows, transfer_rows, shrinking)
        for number, chunk in enumerate(chunks):
            yield apart, number, chunk


CopyCall = GatherCall[CopyEngine, Inbox]


class CopyEngineWay(MultiplyingWay[CopyEngine, Inbox]):
    def peers_read(self, mode: CopyEngine) -> bool:
        return mode.copies == "pulled"

    def scratch(self, task: GatherTask, mode: CopyEngine, shared: Allocate, own: Allocate) -> Inbox:
        return Inbox.of_units(task.problem, shared, math.ceil(task.problem.shard[0] / mode.transfer_rows))

    def launches(self, call: CopyCall) -> list[Launch]:
        """The barrier before, and that after the copies; or, pushed, that before, then a signal and a wait for each
        chunk; and the seal of a result that the library has written.
        """
        enter, seal = barrier_launch(call, call.scratch.ready), seal_launch(call.status, call.tensors.c)
        if call.knobs.copies == "pushed":
            return [enter, *_signals_and_waits(call), seal]
        return [enter, barrier_launch(call, call.scratch.done, finish=True), seal]

    def run(self, call: CopyCall, launches: list[Launch]) -> Run:
        return Chunks(call, launches)


def _turns(call: CopyCall) -> list[tuple[int, int, tuple[int, int]]]:
    problem, mode = call.problem, call.knobs
    return list(rounds(problem.world_size, problem.shard[0], mode.transfer_rows, mode.chunk_sizes == "shrinking"))


def _signals_and_waits(call: CopyCall) -> list[Launch]:
    """Two launches per chunk, in order: the signal to its receiver, and the wait for the chunk of the same turn."""
    scratch, launches, world, turns = call.scratch, [], call.problem.world_size, _turns(call)
    units = scratch.arrivals.shape[-1]
    for turn, (apart, number, _) in enumerate(turns, start=1):
        signal = {
            "arrivals": scratch.arrivals, "counter": call.rank * units + number, "peer": (call.rank + apart) % world,
            "rank": call.rank, "heap_bases": call.bases,
        }  # fmt: skip
        waiting = {
            "arrivals": scratch.arrivals, "counter": (call.rank - apart) % world * units + number,
            "epoch_counter": scratch.epoch_counter, "status": call.status, "spin_limit": call.spin_limit,
            "FINISH": turn == len(turns),
        }  # fmt: skip
        launches += [Launch(signal_chunk_kernel, 1, signal, {"num_warps": 1})]
        launches += [Launch(wait_for_chunk_kernel, 1, waiting, {"num_warps": 1})]
    return launches


class Chunks:
    """Rows layout: peers' rows come by device copies (the copy engines, no multiprocessor), chunk by chunk, and the
    library's GEMM runs on each chunk as it arrives, on alternating streams so that one chunk's tail overlaps with the
    next.

    Pulled, a rank copies its peers' rows once all have arrived, and leaves when all have read. Pushed, it copies its
    own to the peers, and signals each chunk; the GEMM of a chunk comes after a wait for its signal.
    """

    def __init__(self, call: CopyCall, launches: list[Launch]) -> None:
        """The tensor for the gathered A serves as the inbox where there is one."""
        heap, problem, tensors, scratch = call.heap, call.problem, call.tensors, call.scratch
        assert heap is not None, "a call that is only compiled is not run"
        (rows, _), returned, pushed = problem.shard, returned_of(tensors), call.knobs.copies == "pushed"
        self._problem, self._tensors = problem, tensors
        self._enter, *others, self._seal = launches
        self._exit = None if pushed else others[0]
        self._signals, self._waits = (others[::2], others[1::2]) if pushed else ([], [])
        own = slice(heap.rank * rows, (heap.rank + 1) * rows)
        # What our GEMM reads, and the scales that it reads.
        out_scales = scales_of_c(tensors)
        self._own = (tensors.a, tensors.scale_a, tensors.c[own], None if out_scales is None else out_scales[own])
        self._copies: list[Copies] = []
        self._operands = []
        moved = [(tensors.a, scratch.inbox if returned is None else returned)]
        self._returned = None if returned is None else returned[own]
        if scratch.scale_inbox is not None:
            assert tensors.scale_a is not None
            moved.append((tensors.scale_a, scratch.scale_inbox))
        for apart, _, (begin, end) in _turns(call):
            source = (heap.rank - apart) % problem.world_size
            here = slice(source * rows + begin, source * rows + end)
            if pushed:
                target = (heap.rank + apart) % problem.world_size
                there = slice(own.start + begin, own.start + end)
                copies = [(heap.peer(inbox, target)[there], shard[begin:end]) for shard, inbox in moved]
            else:
                copies = [(inbox[here], heap.peer(shard, source)[begin:end]) for shard, inbox in moved]
            self._copies.append(copies)
            scales = moved[1][1][here] if len(moved) > 1 else tensors.scale_a
            its_scales = None if out_scales is None else out_scales[here]
            self._operands.append((moved[0][1][here], scales, tensors.c[here], its_scales))
        self._cuda = heap.device.type == "cuda"
        self._copying = side_stream(heap, "copies")
        self._arriving = side_stream(heap, "arrivals") if pushed else self._copying
        self._multiplying = [side_stream(heap, f"gemm {each}") for each in range(call.knobs.gemm_streams)]

    def __call__(self) -> None:
        """Enqueue one call; the caller's later work on its stream comes after all of it."""
        main = torch.cuda.current_stream() if self._cuda else None
        wait(self._multiplying, [main])
        with on(self._multiplying[0]):
            self._multiply(*self._own)
        self._enter.run()
        wait([self._copying, self._arriving], [main])
        if self._returned is not None:
            with on(self._copying):
                self._returned.copy_(self._tensors.a)
        for copies, signal in zip(self._copies, self._signals, strict=False):
            self._copy(copies)
            with on(self._copying):
                signal.run()
        for number, operands in enumerate(self._operands):
            if self._exit is None:
                with on(self._arriving):
                    self._waits[number].run()
            else:
                self._copy(self._copies[number])
            stream = self._multiplying[(number + 1) % len(self._multiplying)]
            wait([stream], [self._arriving])
            with on(stream):
                self._multiply(*operands)
        wait([main], [self._copying])
        if self._exit is not None:
            self._exit.run()
        wait([main], self._multiplying)
        self._seal.run()

    def _copy(self, copies: Copies) -> None:
        with on(self._copying):
            for place, rows in copies:
                place.copy_(rows)

    def _multiply(
        self, a: torch.Tensor, scale_a: torch.Tensor | None, out: torch.Tensor, out_scales: torch.Tensor | None
    ) -> None:
        multiply_and_activate(self._problem, a, scale_a, self._tensors, out, out_scales)
