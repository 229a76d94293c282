"""The library's way: the bulk-synchronous baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from autotune.kernels.gemm.library import multiply
from autotune.kernels.gemm_all_reduce.problem import GemmAllReduce
from autotune.kernels.launching.gemm import GemmTensors
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.tensors import Run


def bulk_synchronous(
    problem: GemmAllReduce, tensors: GemmTensors, rank: int, group: Any, between: Sequence[Launch] = ()
) -> Run:  # fmt: skip
    """The baseline, the hard way: the library's GEMM into C, then its all-reduce in place; no copies, no host wait.

    The first rank alone adds the bias, within its GEMM. Where the problem demands determinism, which NCCL's in-switch
    reduction does not give, the parts are gathered and summed in the order of the ranks, in fp32. ``between`` are
    launches between GEMM and collective.
    """
    bias = tensors.bias if rank == 0 else None

    def in_between() -> None:
        for launch in between:
            launch.run()

    if not problem.deterministic:

        def all_reduce() -> None:
            multiply(problem, tensors.a, tensors.scale_a, tensors, tensors.c, bias)
            in_between()
            torch.distributed.all_reduce(tensors.c, group=group)

        return all_reduce

    def gather_and_sum() -> None:
        part = torch.empty_like(tensors.c)
        parts = part.new_empty((problem.world_size * problem.m, problem.n))
        multiply(problem, tensors.a, tensors.scale_a, tensors, part, bias)
        in_between()
        torch.distributed.all_gather_into_tensor(parts, part, group)
        torch.sum(parts.view(problem.world_size, problem.m, problem.n), dim=0, out=tensors.c)

    return gather_and_sum
