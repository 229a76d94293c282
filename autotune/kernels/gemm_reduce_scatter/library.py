"""The library's GEMM, then a reduce-scatter: the library's, or our own kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from autotune.kernels.gemm.library import multiply
from autotune.kernels.gemm_reduce_scatter.problem import GemmReduceScatter
from autotune.kernels.launching.collectives import reduce_scatter_single
from autotune.kernels.launching.gemm import SummedTensors
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.tensors import Run


def bulk_synchronous(
    problem: GemmReduceScatter, tensors: SummedTensors, rank: int, group: Any, between: Sequence[Launch] = ()
) -> Run:  # fmt: skip
    """The baseline, the hard way: one library GEMM, one ``reduce_scatter_single`` straight into C, no copy between.

    The first rank alone adds the bias, within its GEMM. ``between`` are launches between the two.
    """
    bias = tensors.bias if rank == 0 else None

    def run() -> None:
        product = tensors.c.new_empty((problem.m, problem.n))
        multiply(problem, tensors.a, tensors.scale_a, tensors, product, bias)
        for launch in between:
            launch.run()
        reduce_scatter_single(tensors.c, product, group=group)
        if tensors.residual is not None:
            tensors.c.add_(tensors.residual)

    return run


def multiply_and_pull(
    problem: GemmReduceScatter, tensors: SummedTensors, product: torch.Tensor, pull_sum: Launch
) -> None:  # fmt: skip
    """The library's GEMM, then our own reduce-scatter. No rank still reads ``product``."""
    multiply(problem, tensors.a, tensors.scale_a, tensors, product)
    pull_sum.run()
