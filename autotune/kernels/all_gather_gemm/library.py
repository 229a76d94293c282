"""The library's GEMM after an all-gather: the library's (the bulk-synchronous baseline), or our own kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.launching.gemm import GemmTensors
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.tensors import Run


def bulk_synchronous(problem: AllGatherGemm, tensors: GemmTensors, between: Sequence[Launch] = ()) -> Run:
    """The baseline, the hard way: one ``all_gather_into_tensor``, one library GEMM, no concatenation, no host wait.

    In K layout the shard is gathered transposed: the result is A transposed, which the library's GEMM takes as it is.
    ``between`` are launches between the two.
    """
    a, by_rows = tensors.a, problem.rows_layout
    shape = (problem.m, problem.k) if by_rows else (problem.k, problem.m)

    def run() -> None:
        gathered = a.new_empty(shape)
        torch.distributed.all_gather_into_tensor(gathered, a if by_rows else a.t().contiguous())
        for launch in between:
            launch.run()
        multiply(gathered if by_rows else gathered.t(), tensors, tensors.c)

    return run


def gather_and_multiply(gather: Launch, tensors: GemmTensors, inbox: torch.Tensor) -> None:
    """The same with our own kernel instead of the library's collective; in either layout A arrives untransposed."""
    gather.run()
    multiply(inbox, tensors, tensors.c)


def multiply(a: torch.Tensor, tensors: GemmTensors, out: torch.Tensor) -> None:
    """The library's GEMM: out = a @ B (+ bias)."""
    if tensors.bias is None:
        torch.matmul(a, tensors.b, out=out)
    else:
        torch.addmm(tensors.bias, a, tensors.b, out=out)
