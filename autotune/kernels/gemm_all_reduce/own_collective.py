"""The library's GEMM in chunks of rows, and our all-reduce of a chunk's product beside the next chunk's GEMM."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from autotune.heap.arena import SymmetricHeap
from autotune.kernels.gemm.library import multiply
from autotune.kernels.gemm_all_reduce.problem import GemmAllReduce
from autotune.kernels.launching.gemm import SummedTensors
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.streams import on, side_stream, wait


class OwnCollective:
    """One call. The all-reduces follow each other on a stream of their own, launches of one epoch each; a single one
    stays on the caller's.

    No GEMM waits for an all-reduce, and an all-reduce for nothing but the peers' all-reduce of the same chunk: wherever
    its programs find room, theirs do sooner or later.
    """

    def __init__(
        self, problem: GemmAllReduce, tensors: SummedTensors, parts: torch.Tensor, launches: Sequence[Launch],
        heap: SymmetricHeap,
    ) -> None:  # fmt: skip
        """``parts`` has a chunk's product for each launch, and what its last block has beyond it."""
        self._problem, self._tensors = problem, tensors
        self._bias = tensors.bias if heap.rank == 0 else None
        rows = problem.m // len(launches)
        self._chunks = [
            (
                tensors.a[number * rows : (number + 1) * rows],
                _scales(problem, tensors.scale_a, number * rows, rows),
                part.view(-1)[: rows * problem.n].view(rows, problem.n),
                launch,
            )
            for number, (part, launch) in enumerate(zip(parts, launches, strict=True))
        ]
        self._cuda = heap.device.type == "cuda"
        self._reducing = side_stream(heap, "all-reduces") if len(launches) > 1 else None

    def __call__(self) -> None:
        """Enqueue one call; what the caller enqueues next on its stream comes after all of it."""
        main = torch.cuda.current_stream() if self._cuda and self._reducing is not None else None
        for a, scale_a, product, launch in self._chunks:
            multiply(self._problem, a, scale_a, self._tensors, product, self._bias)
            if self._reducing is not None:
                wait([self._reducing], [main])
            with on(self._reducing):
                launch.run()
        if self._reducing is not None:
            wait([main], [self._reducing])


def _scales(problem: GemmAllReduce, scale_a: torch.Tensor | None, begin: int, rows: int) -> torch.Tensor | None:
    return scale_a if scale_a is None or problem.scales == "tensor" else scale_a[begin : begin + rows]
