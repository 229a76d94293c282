"""The mode ``copy_engine``: peers' rows by device copies, the library's GEMM on each chunk as it arrives."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from autotune.heap.arena import SymmetricHeap
from autotune.kernels.all_gather_gemm.activation import multiply_and_activate
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.all_gather_gemm.scratch import Scratch
from autotune.kernels.all_gather_gemm.tensors import scales_of_c
from autotune.kernels.launching.gemm import GemmTensors
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.streams import on, side_stream, wait
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


class CopyEngine:
    """Rows layout: peers' rows come by device copies (the copy engines, no multiprocessor), chunk by chunk, and the
    library's GEMM runs on each chunk as it arrives, on alternating streams so that one chunk's tail overlaps with the
    next.

    Pulled, a rank copies its peers' rows once all have arrived, and leaves when all have read. Pushed, it copies its
    own to the peers, and signals each chunk; the GEMM of a chunk comes after a wait for its signal.
    """

    def __init__(
        self, problem: AllGatherGemm, tensors: GemmTensors, scratch: Scratch, launches: list[Launch],
        heap: SymmetricHeap, returned: torch.Tensor | None, *, transfer_rows: int, streams: int, shrinking: bool,
        pushed: bool,
    ) -> None:  # fmt: skip
        """``returned``, the tensor for the gathered A, serves as the inbox where it is given. ``launches``: the barrier
        before, and that after the copies; or, pushed, that before, then a signal and a wait for each chunk; and
        the seal of a result that the library has written.
        """
        rows, _ = problem.shard
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
        for apart, _, (begin, end) in rounds(problem.world_size, rows, transfer_rows, shrinking):
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
        self._multiplying = [side_stream(heap, f"gemm {each}") for each in range(streams)]

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
