"""The library's GEMM after an all-gather: the library's (the bulk-synchronous baseline), or our own kernel."""

from __future__ import annotations

import torch

from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.launching.gemm import GemmTensors
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.tensors import Run


def bulk_synchronous(problem: AllGatherGemm, tensors: GemmTensors) -> Run:
    """The baseline, the hard way: one ``all_gather_into_tensor``, one library GEMM, no concatenation, no host wait.

    In K layout the shard is gathered transposed: the result is A transposed, which the library's GEMM takes as it is.
    """
    rows, width = problem.shard
    shape = (problem.m, problem.k) if problem.rows_layout else (problem.k, problem.m)
    gathered = torch.empty(shape, dtype=tensors.a.dtype, device=tensors.a.device)
    turned = None if problem.rows_layout else torch.empty((width, rows), dtype=tensors.a.dtype, device=tensors.a.device)
    whole = gathered if problem.rows_layout else gathered.t()

    def run() -> None:
        if turned is not None:
            turned.copy_(tensors.a.t())
        torch.distributed.all_gather_into_tensor(gathered, tensors.a if turned is None else turned)
        multiply(whole, tensors, tensors.c)

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
