"""The operators that pass and layers call. Each decides by its call's sizes, which all ranks share, whether our kernel
runs or what vLLM would have called.

They hold a group's name and no context, so they also run from a graph that vLLM took from its cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from vllm.distributed import get_tp_group  # registers vLLM's collectives
from vllm.ir import ops as vllm_ir

from autotune.compiled import served
from iris_autotune_vllm.settings import LOG, switched_off

Tensor = torch.Tensor
Pair = tuple[Tensor, Tensor]

LIBRARY = torch.library.Library("iris_autotune_vllm", "DEF")


def ours(name: str, group: str, operands: dict[str, Tensor | None], **options: Any) -> Any:
    """What our kernel makes of a call; None where vLLM's way is as fast, by what all ranks share."""
    tp = get_tp_group()
    if switched_off() or tp.unique_name != group:
        return None
    return served.ours(name, tp, operands, LOG, **options)


def gemm_all_reduce(a: Tensor, b: Tensor, group: str) -> Tensor:
    """Sum over ranks of a [m, k_local] @ b [k_local, n]."""
    result = ours("gemm_all_reduce", group, {"a": a, "b": b})
    return torch.ops.vllm.all_reduce(torch.mm(a, b), group) if result is None else result


def all_reduce_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, group: str) -> Pair:
    """RMSNorm of the sum over ranks of x, plus the residual if there is one; and that total. [m, n] each."""
    added = torch.zeros_like(x) if residual is None else residual
    result = ours("all_reduce_norm", group, {"x": x, "residual": added, "weight": weight}, eps=eps)
    return _normed(torch.ops.vllm.all_reduce(x, group), residual, weight, eps) if result is None else result


def gemm_all_reduce_norm(a: Tensor, b: Tensor, residual: Tensor, weight: Tensor, eps: float, group: str) -> Pair:
    """``all_reduce_norm`` of a [m, k_local] @ b [k_local, n]."""
    operands = {"a": a, "b": b, "residual": residual, "weight": weight}
    result = ours("gemm_all_reduce_norm", group, operands, eps=eps)
    if result is None:
        return _normed(torch.ops.vllm.all_reduce(torch.mm(a, b), group), residual, weight, eps)
    return result


def gemm_reduce_scatter(a: Tensor, b: Tensor, group: str) -> Tensor:
    """This rank's rows of the sum over ranks of a [m, k_local] @ b [k_local, n]."""
    result = ours("gemm_reduce_scatter", group, {"a": a, "b": b})
    if result is None:
        return torch.ops.vllm.reduce_scatter(torch.mm(a, b), 0, get_tp_group().world_size, group)
    return result


def all_gather_gemm(a: Tensor, b: Tensor, group: str) -> Tensor:
    """The rows a [m_local, k] of all ranks @ b [k, n_local]."""
    result = ours("all_gather_gemm", group, {"a": a, "b": b})
    if result is None:
        return torch.mm(torch.ops.vllm.all_gather(a, 0, get_tp_group().world_size, group), b)
    return result


def _normed(total: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Pair:
    if residual is None:
        return vllm_ir.rms_norm(total, weight, eps), total
    return vllm_ir.fused_add_rms_norm(total, residual, weight, eps)


def _register(call: Callable[..., Any], arguments: str, results: str, fake: Callable[..., Any]) -> None:
    """Not ``torch.library.custom_op``, whose checks cost each call some microseconds."""
    name = call.__name__
    LIBRARY.define(f"{name}({arguments}, str group) -> {results}", tags=(torch.Tag.needs_exact_strides,))
    LIBRARY.impl(name, call, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{LIBRARY.ns}::{name}", fake, lib=LIBRARY)


_register(gemm_all_reduce, "Tensor a, Tensor b", "Tensor", lambda a, b, *_: a.new_empty(a.shape[0], b.shape[1]))
_register(
    all_reduce_norm, "Tensor x, Tensor? residual, Tensor weight, float eps", "(Tensor, Tensor)",
    lambda x, *_: (torch.empty_like(x), torch.empty_like(x)),
)  # fmt: skip
_register(
    gemm_all_reduce_norm, "Tensor a, Tensor b, Tensor residual, Tensor weight, float eps", "(Tensor, Tensor)",
    lambda a, b, residual, *_: (torch.empty_like(residual), torch.empty_like(residual)),
)  # fmt: skip
_register(
    gemm_reduce_scatter, "Tensor a, Tensor b", "Tensor",
    lambda a, b, group: a.new_empty(a.shape[0] // get_tp_group().world_size, b.shape[1]),
)  # fmt: skip
_register(
    all_gather_gemm, "Tensor a, Tensor b", "Tensor",
    lambda a, b, group: a.new_empty(a.shape[0] * get_tp_group().world_size, b.shape[1]),
)  # fmt: skip

IN_GRAPHS = torch.ops.iris_autotune_vllm
