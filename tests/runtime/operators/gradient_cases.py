"""Problems whose gradients the tests look at, and what is right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from calls import error

import autotune
from autotune.kernels.launching.tensors import TORCH_DTYPES

Tensor = torch.Tensor
Operands = tuple[Tensor | None, ...]


def kinds(dtype: str) -> Iterator[Any]:
    """Both layouts, both orders of B, with a bias and without."""
    ranks = dist.get_world_size()
    sizes: dict[str, Any] = {"m": 8 * ranks, "k": 16 * ranks, "world_size": ranks, "dtype": dtype}
    yield autotune.AllGatherGemm(**sizes, n=24 * ranks, bias=True, b_order="nk")
    yield autotune.AllGatherGemm(**sizes, n=24 * ranks)
    yield autotune.AllGatherGemm(**sizes, n=24 * ranks, layout="k", bias=True)
    yield autotune.AllGatherGemm(**sizes, n=24 * ranks, layout="k", b_order="nk")
    yield autotune.GemmReduceScatter(**sizes, n=24, bias=True, b_order="nk")
    yield autotune.GemmReduceScatter(**sizes, n=24)
    yield autotune.GemmAllReduce(**sizes, n=24, bias=True, b_order="nk")
    yield autotune.GemmAllReduce(**sizes, n=24)


def few(dtype: str = "fp32") -> list[Any]:
    """A problem with a bias for each operator."""
    return [each for each in kinds(dtype) if each.bias and getattr(each, "rows_layout", True)]


def drawn(context: autotune.Context, problem: Any, seed: int = 1) -> list[Operands]:
    """Every rank's operands, the same on every rank; all need gradients."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        values = torch.randn(shape, generator=generator).to(TORCH_DTYPES[problem.dtype])
        return values.to(context.heap.device).requires_grad_()

    gathering = problem.workload == "all_gather_gemm"
    rows, width = problem.shard if gathering else (problem.m, problem.k_local)
    columns, depth = (problem.n_local, problem.k) if gathering else (problem.n, problem.k_local)
    bias = draw(columns) if problem.bias else None
    found = []
    for _ in range(problem.world_size):
        b = draw(depth, columns) if problem.b_order == "kn" else draw(columns, depth).detach().t().requires_grad_()
        found.append((draw(rows, width), b, bias))
    return found


def loss(results: list[Tensor], ranks: list[int]) -> Tensor:
    """Of these ranks' results: weighted by small integers, which every type holds."""
    total = torch.zeros((), dtype=results[0].dtype, device=results[0].device)
    for rank, result in zip(ranks, results, strict=True):
        weights = (torch.arange(result.numel(), device=result.device) * 5 + rank) % 7 - 3
        total = total + (result * weights.view(result.shape).to(result.dtype)).sum()
    return total


def expected(problem: Any, everyone: list[Operands]) -> Operands:
    """The gradients of this rank's operands, in fp64, from the loss of all ranks' results."""
    wide = [in_fp64(each) for each in everyone]
    ranks, rank = list(range(problem.world_size)), dist.get_rank()
    bias = wide[rank][2]
    if problem.workload == "all_gather_gemm":
        whole = torch.cat([a for a, *_ in wide], dim=0 if problem.rows_layout else 1)
        results = [whole @ b if each is None else whole @ b + each for _, b, each in wide]
    else:
        bias = wide[0][2]
        total = sum(a @ b for a, b, _ in wide)
        total = total if bias is None else total + bias
        results = list(total.chunk(len(ranks))) if problem.workload == "gemm_reduce_scatter" else [total]
    loss(results, ranks[: len(results)]).backward()
    return tuple(None if x is None else x.grad for x in (*wide[rank][:2], bias))


def in_fp64(operands: Operands) -> Operands:
    """Their values, with gradients of their own."""
    return tuple(None if x is None else x.detach().double().requires_grad_() for x in operands)


def own_loss(problem: Any, result: Tensor) -> Tensor:
    """This rank's part of it; of one result that all have, the whole."""
    return loss([result], [0 if problem.workload == "gemm_all_reduce" else dist.get_rank()])


def worst(operands: Operands, right: Operands, times: float = 1) -> float:
    """The largest error of the gradients, against ``times`` the right ones."""
    pairs = [(x, y) for x, y in zip(operands, right, strict=True) if x is not None and y is not None]
    for x, _ in pairs:
        assert x.grad is not None and x.grad.dtype == x.dtype
    return max(error(x.grad, (y * times).float()) for x, y in pairs if x.grad is not None)
