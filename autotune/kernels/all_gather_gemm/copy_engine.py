"""The mode ``copy_engine``: peers' rows by device copies, the library's GEMM on each chunk as it arrives."""

from __future__ import annotations

import torch

from autotune.heap.arena import SymmetricHeap
from autotune.kernels.all_gather_gemm.activation import multiply_and_activate
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.all_gather_gemm.scratch import Scratch
from autotune.kernels.all_gather_gemm.tensors import scales_of_c
from autotune.kernels.launching.gemm import GemmTensors
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.streams import on, side_stream, wait


class CopyEngine:
    """Rows layout: peers' rows come by device copies (the copy engines, no multiprocessor), chunk by chunk, and the
    library's GEMM runs on each chunk as it arrives, on alternating streams so that one chunk's tail overlaps with the
    next.
    """

    def __init__(
        self, problem: AllGatherGemm, tensors: GemmTensors, scratch: Scratch, launches: list[Launch],
        heap: SymmetricHeap, returned: torch.Tensor | None, *, transfer_rows: int, streams: int,
    ) -> None:  # fmt: skip
        """``returned``, the tensor for the gathered A, serves as the inbox where it is given."""
        rows, _ = problem.shard
        self._problem, self._tensors = problem, tensors
        self._enter, self._exit = launches
        own = slice(heap.rank * rows, (heap.rank + 1) * rows)
        # What our GEMM reads, and the scales that it reads.
        out_scales = scales_of_c(tensors)
        self._own = (tensors.a, tensors.scale_a, tensors.c[own], None if out_scales is None else out_scales[own])
        self._chunks = []
        moved = [(tensors.a, scratch.inbox if returned is None else returned)]
        self._returned = None if returned is None else returned[own]
        if scratch.scale_inbox is not None:
            assert tensors.scale_a is not None
            moved.append((tensors.scale_a, scratch.scale_inbox))
        for back in range(1, problem.world_size):
            source = (heap.rank - back) % problem.world_size
            remote = [heap.peer(shard, source) for shard, _ in moved]
            for begin in range(0, rows, transfer_rows):
                end = min(begin + transfer_rows, rows)
                here = slice(source * rows + begin, source * rows + end)
                copies = [(inbox[here], there[begin:end]) for (_, inbox), there in zip(moved, remote, strict=True)]
                scales = copies[1][0] if len(copies) > 1 else tensors.scale_a
                its_scales = None if out_scales is None else out_scales[here]
                self._chunks.append((copies, (copies[0][0], scales, tensors.c[here], its_scales)))
        self._cuda = heap.device.type == "cuda"
        self._copying = side_stream(heap, "copies")
        self._multiplying = [side_stream(heap, f"gemm {each}") for each in range(streams)]

    def __call__(self) -> None:
        """Enqueue one call; the caller's later work on its stream comes after all of it."""
        main = torch.cuda.current_stream() if self._cuda else None
        wait(self._multiplying, [main])
        with on(self._multiplying[0]):
            self._multiply(*self._own)
        self._enter.run()
        wait([self._copying], [main])
        if self._returned is not None:
            with on(self._copying):
                self._returned.copy_(self._tensors.a)
        for number, (copies, operands) in enumerate(self._chunks, start=1):
            with on(self._copying):
                for inbox, remote in copies:
                    inbox.copy_(remote)
            stream = self._multiplying[number % len(self._multiplying)]
            wait([stream], [self._copying])
            with on(stream):
                self._multiply(*operands)
        wait([main], [self._copying])
        self._exit.run()
        wait([main], self._multiplying)

    def _multiply(
        self, a: torch.Tensor, scale_a: torch.Tensor | None, out: torch.Tensor, out_scales: torch.Tensor | None
    ) -> None:
        multiply_and_activate(self._problem, a, scale_a, self._tensors, out, out_scales)
