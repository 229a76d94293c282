"""Operators of mixtures of experts behind the dispatch: experts' rows back to their tokens."""

from __future__ import annotations

import torch

from autotune.config import Config
from autotune.runtime.context import Context
from autotune.runtime.operator import Operator
from autotune.workloads.built_in import moe_combine as combining
from autotune.workloads.built_in import moe_gemm_combine as multiplying

_MOE_COMBINE = Operator(combining.WORKLOAD)
_MOE_GEMM_COMBINE = Operator(multiplying.WORKLOAD)


def moe_combine(
    context: Context, rows: torch.Tensor, offsets: torch.Tensor, pairs: torch.Tensor, gates: torch.Tensor,
    ids: torch.Tensor, *, routing: str = "uniform", exponent: float = 0.0, deterministic: bool = False,
    out: torch.Tensor | None = None, config: Config | None = None,
) -> torch.Tensor:  # fmt: skip
    """Each token's sum of gate * row over its experts' rows, at the token's rank, by the tuned config, on the current
    stream.

    Collective. ``rows`` [capacity, hidden], bf16, fp16 or fp32, lie by expert, and ``offsets``, ``pairs`` and ``gates``
    are their plan, as ``moe_dispatch`` returns it; ``ids`` int32 [tokens, top_k] are those of this rank's tokens that
    it was given. All are contiguous. Returns [tokens, hidden], zero for a token without experts; ``out`` where one is
    given. The host reads nothing. ``deterministic`` demands the same bits in every call with the same inputs, which our
    kernels give in any case. ``routing`` and ``exponent`` are as in ``moe_dispatch``.

    Raises InvalidProblem where shapes, strides or types do not fit, HeapExhausted where the context's heap is too
    small, and on the first call of a problem what ``lookup`` raises.
    """
    operands = rows, offsets, pairs, gates, ids
    return _MOE_COMBINE(context, operands, (routing, exponent, deterministic), out, config)


def moe_gemm_combine(
    context: Context, a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor, pairs: torch.Tensor,
    gates: torch.Tensor, ids: torch.Tensor, *, routing: str = "uniform", exponent: float = 0.0,
    deterministic: bool = False, out: torch.Tensor | None = None, config: Config | None = None,
) -> torch.Tensor:  # fmt: skip
    """Each token's sum of gate * (row of A @ its expert's B), at the token's rank, by the tuned config, on the current
    stream.

    Collective. ``a`` [capacity, width], contiguous, and ``b`` [local experts, width, hidden], contiguous or each the
    transpose of a contiguous matrix, are bf16, fp16 or fp32; A's rows lie by expert, by the plan ``offsets``,
    ``pairs``, ``gates``. That, ``ids``, ``deterministic``, ``routing``, ``exponent`` and what is returned are as in
    ``moe_combine``.

    Raises InvalidProblem where shapes, strides or types do not fit, HeapExhausted where the context's heap is too
    small, and on the first call of a problem what ``lookup`` raises.
    """
    operands = a, b, offsets, pairs, gates, ids
    return _MOE_GEMM_COMBINE(context, operands, (routing, exponent, deterministic), out, config)
