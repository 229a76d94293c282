"""The library's way: the bulk-synchronous baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from autotune.kernels.gemm.library import multiply
from autotune.kernels.gemm_all_reduce.problem import GemmAllReduce
from autotune.kernels.launching.collectives import all_gather_single
from autotune.kernels.launching.gemm import SummedTensors
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.tensors import Run


def bulk_synchronous(
    problem: GemmAllReduce, tensors: SummedTensors, rank: int, group: Any, between: Sequence[Launch] = ()
) -> Run:  # fmt: skip
    """The baseline, the hard way: the library's GEMM into C, then its all-reduce in place; no copies, no host wait.

    The first rank alone adds bias and residual, within its GEMM; that of fp8 adds no matrix, so each rank adds the
    residual to the sum. Where the problem demands determinism, which NCCL's in-switch
    reduction does not give, the parts are gathered and summed in the order of the ranks, in fp32. ``between`` are
    launches between GEMM and collective.
    """
    afterwards = tensors.residual if problem.residual and problem.scaled else None

    def in_between() -> None:
        for launch in between:
            launch.run()

    if not problem.deterministic:

        def all_reduce() -> None:
            multiply(problem, tensors.a, tensors.scale_a, tensors, tensors.c, _added(problem, tensors, rank))
            in_between()
            torch.distributed.all_reduce(tensors.c, group=group)
            if afterwards is not None:
                tensors.c.add_(afterwards)

        return all_reduce

    def gather_and_sum() -> None:
        part = torch.empty_like(tensors.c)
        parts = part.new_empty((problem.world_size * problem.m, problem.n))
        multiply(problem, tensors.a, tensors.scale_a, tensors, part, _added(problem, tensors, rank))
        in_between()
        all_gather_single(parts, part, group)
        torch.sum(parts.view(problem.world_size, problem.m, problem.n), dim=0, out=tensors.c)
        if afterwards is not None:
            tensors.c.add_(afterwards)

    return gather_and_sum


def _added(problem: GemmAllReduce, tensors: SummedTensors, rank: int) -> torch.Tensor | None:
    """The addend of a rank's GEMM, on rank 0 alone: bias, or the residual with it; of scaled operands bias alone."""
    if rank != 0:
        return None
    if not problem.residual or problem.scaled:
        return tensors.bias
    assert tensors.residual is not None
    return tensors.residual if tensors.bias is None else tensors.residual + tensors.bias
