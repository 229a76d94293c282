"""Linear layers whose weight is shared out over ranks, as functions of local tensors; with gradients."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from autotune.runtime.call import aligned, dispatched
from autotune.runtime.context import Context
from autotune.runtime.gradients import autocast, called, taken_by_all
from autotune.runtime.operators import all_gather_gemm, gemm_all_reduce, gemm_reduce_scatter

Tensor = torch.Tensor


def column_parallel(
    context: Context, x: Tensor, weight: Tensor, bias: Tensor | None, gather_dim: int | None = None,
    keep_gathered: bool = False,
) -> Tensor:  # fmt: skip
    """This rank's columns of x W' (+ bias); ``weight`` [columns / ranks, k].

    ``x`` is the same on every rank, and its gradient is reduced over ranks within the GEMM that makes it; or, with
    ``gather_dim``, it is this rank's part of that dimension, and is gathered within the GEMM.
    """
    if gather_dim in (0, -1) and x.dim() == 1:  # the columns of a matrix with one row
        return column_parallel(context, x[None], weight, bias, -1, keep_gathered)[0]
    if gather_dim is not None:
        x, weight, bias = readable(x, weight, bias)
        return all_gather_gemm(context, x, weight.t(), bias, gather_dim=gather_dim, keep_gathered=keep_gathered)
    if not (torch.is_grad_enabled() and x.requires_grad):
        return F.linear(x, weight, bias)
    operands = autocast((x, weight, bias), x.device.type)
    made: Tensor = _Replicated.apply(context.handle, context.group_name, *operands)  # type: ignore[no-untyped-call]
    return made


def row_parallel(
    context: Context, x: Tensor, weight: Tensor, bias: Tensor | None, scatter_dim: int | None = None
) -> Tensor:
    """X W' (+ bias), summed over ranks: all of it, or this rank's part of ``scatter_dim``; ``weight`` [n, k / ranks].

    ``bias`` is the same on every rank, and so is its gradient.
    """
    if x.dim() == 1 and scatter_dim in (None, 0, -1):  # a matrix with one row
        return row_parallel(context, x[None], weight, bias, None if scatter_dim is None else -1)[0]
    x, weight, bias = readable(x, weight, bias)
    if scatter_dim is None:
        return gemm_all_reduce(context, x, weight.t(), bias)
    return gemm_reduce_scatter(context, x, weight.t(), bias, scatter_dim=scatter_dim)


def readable(*tensors: Any) -> tuple[Any, ...]:
    """The operands where kernels can read them: weights that are mapped from a file may lie anywhere, and what torch's
    styles hand on may still be under way.
    """
    if torch.compiler.is_compiling() or dispatched():
        return tensors
    return tuple(aligned(_arrived(tensor)) for tensor in tensors)


def _arrived(tensor: Any) -> Any:
    """The result of a collective; where gradients go through it, torch's dispatcher waits."""
    if isinstance(tensor, AsyncCollectiveTensor) and not tensor.requires_grad:
        return tensor.wait()
    return tensor


class _Replicated(torch.autograd.Function):
    """A linear layer of an input that all ranks have: its gradient is the sum over ranks, by ``gemm_all_reduce``."""

    @staticmethod
    def forward(ctx: Any, context: int, group: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[3] else None, weight)
        ctx.context, ctx.group, ctx.shape = context, group, x.shape
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = torch.atleast_2d(grad).flatten(0, -2).contiguous()
        of_x = called("gemm_all_reduce", ctx.context, rows, weight).view(ctx.shape)
        of_weight = None if x is None else rows.t() @ torch.atleast_2d(taken_by_all(ctx.group, x)).flatten(0, -2)
        return None, None, of_x, of_weight, rows.sum(0) if ctx.needs_input_grad[4] else None
