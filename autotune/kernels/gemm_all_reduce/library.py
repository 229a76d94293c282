"""The library's way: the bulk-synchronous baseline."""

from __future__ import annotations

import torch

from autotune.kernels.gemm.library import GemmWay, multiply, ring
from autotune.kernels.gemm_all_reduce.modes import Library
from autotune.kernels.gemm_all_reduce.problem import GemmAllReduce
from autotune.kernels.launching.collectives import all_gather_single
from autotune.kernels.launching.contract import Call
from autotune.kernels.launching.gemm import SummedTensors
from autotune.kernels.launching.one_program import empty_launches
from autotune.kernels.launching.tensors import Run
from autotune.kernels.launching.way import LibraryWay

LibraryCall = Call[GemmAllReduce, Library, SummedTensors, None]


class BulkSynchronous(
    LibraryWay[GemmAllReduce, Library, SummedTensors], GemmWay[GemmAllReduce, Library, SummedTensors, None]
):
    def eager(self, call: LibraryCall) -> Run:
        """The library's GEMM into C, then its all-reduce in place; no copies, no host wait.

        The first rank alone adds bias and residual, within its GEMM; that of fp8 adds no matrix, so each rank adds the
        residual to the sum. Where the problem demands determinism, which NCCL's in-switch reduction does not give, the
        parts are gathered and summed in the order of the ranks, in fp32.
        """
        problem, tensors = call.problem, call.tensors
        between = empty_launches(call.knobs.empty_launches)
        afterwards = tensors.residual if problem.residual and problem.scaled else None
        reduce = _gathered_and_summed if problem.deterministic else _all_reduced

        def run() -> None:
            part = torch.empty_like(tensors.c) if problem.deterministic else tensors.c
            multiply(problem, tensors.a, tensors.scale_a, tensors, part, _added(problem, tensors, call.rank))
            for launch in between:
                launch.run()
            reduce(call, part)
            if afterwards is not None:
                tensors.c.add_(afterwards)

        return run

    def roundings(self, problem: GemmAllReduce) -> float:
        return ring(problem.world_size) + 2 * problem.residual


def _all_reduced(call: LibraryCall, part: torch.Tensor) -> None:
    torch.distributed.all_reduce(part, group=call.group)


def _gathered_and_summed(call: LibraryCall, part: torch.Tensor) -> None:
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
