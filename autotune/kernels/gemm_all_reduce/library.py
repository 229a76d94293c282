"""The library's GEMM, then its all-reduce; or in chunks of rows, with ours of a chunk beside the next chunk's GEMM."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from autotune.kernels.gemm.library import multiply, ring, scales_of_rows
from autotune.kernels.gemm_all_reduce import device
from autotune.kernels.gemm_all_reduce.exchange import Exchange, exchange_arguments
from autotune.kernels.gemm_all_reduce.modes import CustomCollective, Library, ReduceTask
from autotune.kernels.gemm_all_reduce.problem import GemmAllReduce
from autotune.kernels.launching.collectives import all_gather_single
from autotune.kernels.launching.contract import Call
from autotune.kernels.launching.gemm import SummedTensors
from autotune.kernels.launching.one_program import empty_launches
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.streams import on, side_stream, wait
from autotune.kernels.launching.tensors import TORCH_DTYPES, Allocate, Run
from autotune.kernels.launching.way import LibraryWay, Way

LibraryCall = Call[GemmAllReduce, Library, SummedTensors, None]
ChunksCall = Call[GemmAllReduce, CustomCollective, SummedTensors, Exchange]


class BulkSynchronous(LibraryWay[GemmAllReduce, Library, SummedTensors]):
    def eager(self, call: LibraryCall) -> Run:
        """The library's GEMM into C, then its all-reduce in place; no copies, no host wait.

        The first rank alone adds bias and residual, within its GEMM; that of fp8 adds no matrix, so each rank adds the
        residual to the sum. Where the problem demands determinism, which NCCL's in-switch reduction does not give, the
        parts are gathered and summed in the order of the ranks, in fp32.
        """
        problem, tensors = call.problem, call.tensors
        between = empty_launches(call.knobs.empty_launches)
        afterwards = tensors.residual if problem.residual and problem.scaled else None

        def run() -> None:
            part = torch.empty_like(tensors.c) if problem.deterministic else tensors.c
            multiply(problem, tensors.a, tensors.scale_a, tensors, part, _added(problem, tensors, call.rank))
            for launch in between:
                launch.run()
            if problem.deterministic:
                _gather_and_sum(call, part)
            else:
                torch.distributed.all_reduce(part, group=call.group)
            if afterwards is not None:
                tensors.c.add_(afterwards)

        return run

    def roundings(self, problem: GemmAllReduce) -> float:
        return ring(problem.world_size) + 2 * problem.residual


def _gather_and_sum(call: LibraryCall, part: torch.Tensor) -> None:
    problem = call.problem
    parts = part.new_empty((problem.world_size * problem.m, problem.n))
    all_gather_single(parts, part, call.group)
    torch.sum(parts.view(problem.world_size, problem.m, problem.n), dim=0, out=call.tensors.c)


def _added(problem: GemmAllReduce, tensors: SummedTensors, rank: int) -> torch.Tensor | None:
    """The addend of a rank's GEMM, on rank 0 alone: bias, or the residual with it; of scaled operands bias alone."""
    if rank != 0:
        return None
    if not problem.residual or problem.scaled:
        return tensors.bias
    assert tensors.residual is not None
    return tensors.residual if tensors.bias is None else tensors.residual + tensors.bias


class CustomCollectiveWay(Way[GemmAllReduce, CustomCollective, SummedTensors, Exchange]):
    """A tile is ``sum_block`` elements of a chunk's product, which counts as one row."""

    def scratch(self, task: ReduceTask, mode: CustomCollective, shared: Allocate, own: Allocate) -> Exchange:
        problem, tiles, tile = task.problem, _tiles(task.problem, mode), (1, mode.sum_block)
        chunks = problem.m // _rows(problem, mode)
        dtype = TORCH_DTYPES[problem.result_dtype]
        parts = own((chunks, tiles, *tile), dtype)
        return Exchange.of(mode, problem.world_size, dtype, tiles, tile, shared, parts=parts)

    def launches(self, call: ChunksCall) -> list[Launch]:
        return [_all_reduce(call, number) for number in range(call.problem.m // _rows(call.problem, call.knobs))]

    def run(self, call: ChunksCall, launches: list[Launch]) -> Run:
        return Chunks(call, launches)

    def roundings(self, problem: GemmAllReduce) -> float:
        """Each part, and the sum; the library's GEMM may round before it adds a bias."""
        return 2.0 + problem.bias


def _rows(problem: GemmAllReduce, mode: CustomCollective) -> int:
    """Rows of C that an all-reduce takes."""
    return min(problem.m, mode.transfer_rows)


def _tiles(problem: GemmAllReduce, mode: CustomCollective) -> int:
    return math.ceil(_rows(problem, mode) * problem.n / mode.sum_block)


def _all_reduce(call: ChunksCall, number: int) -> Launch:
    """The all-reduce of a chunk of the library's product: a bias is in there, a residual is added to the sum."""
    problem, mode, parts = call.problem, call.knobs, call.scratch.parts
    tiles, height = _tiles(problem, mode), _rows(problem, mode)
    here = slice(number * height, (number + 1) * height)
    c, residual = call.tensors.c[here], call.tensors.residual if problem.residual else None
    assert parts is not None
    arguments = {
        **exchange_arguments(call), "c": c, "bias": c, "BIAS": False, "M": 1, "N": height * problem.n,
        "group_m": 1, "parts": parts[number], "residual": None if residual is None else residual[here],
        "BLOCK_M": 1, "BLOCK_N": mode.sum_block,
    }  # fmt: skip
    return Launch(device.all_reduce_kernel, tiles, arguments, {"num_warps": mode.sum_warps})


class Chunks:
    """One call. The all-reduces follow each other on a stream of their own, launches of one epoch each; a single one
    stays on the caller's.

    No GEMM waits for an all-reduce, and an all-reduce for nothing but the peers' all-reduce of the same chunk: wherever
    its programs find room, theirs do sooner or later.
    """

    def __init__(self, call: ChunksCall, launches: Sequence[Launch]) -> None:
        heap, problem, tensors, parts = call.heap, call.problem, call.tensors, call.scratch.parts
        assert heap is not None and parts is not None, "a call that is only compiled is not run"
        self._problem, self._tensors = problem, tensors
        self._bias = tensors.bias if heap.rank == 0 else None
        rows, self._chunks = problem.m // len(launches), []
        for number, (part, launch) in enumerate(zip(parts, launches, strict=True)):
            here = slice(number * rows, (number + 1) * rows)
            scales = scales_of_rows(problem, tensors.scale_a, here)
            self._chunks.append((tensors.a[here], scales, part.view(-1)[: rows * problem.n].view(rows, -1), launch))
        self._reducing = side_stream(heap, "all-reduces") if len(launches) > 1 else None

    def __call__(self) -> None:
        """Enqueue one call; what the caller enqueues next on its stream comes after all of it."""
        main = torch.cuda.current_stream() if self._reducing is not None else None
        for a, scale_a, product, launch in self._chunks:
            multiply(self._problem, a, scale_a, self._tensors, product, self._bias)
            wait([self._reducing], [main])
            with on(self._reducing):
                launch.run()
        wait([main], [self._reducing])
