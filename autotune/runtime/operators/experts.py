"""Operators of mixtures of experts: tokens to the ranks of their experts, and the experts' rows back to them."""

from __future__ import annotations

from typing import NamedTuple, overload

import torch

from autotune.config import Config
from autotune.runtime.context import Context
from autotune.runtime.operator import Operator
from autotune.runtime.tokens import as_the_most, ids_of_the_most, own_rows
from autotune.workloads.built_in import moe_combine as combining
from autotune.workloads.built_in import moe_dispatch as dispatching
from autotune.workloads.built_in import moe_dispatch_gemm as dispatching_multiplying
from autotune.workloads.built_in import moe_gemm_combine as multiplying

Tensor = torch.Tensor

_MOE_DISPATCH = Operator(dispatching.WORKLOAD)
_SCALED_MOE_DISPATCH = Operator(dispatching.WITH_SCALES, name="moe_dispatch_scaled")
_MOE_DISPATCH_GEMM = Operator(dispatching_multiplying.WORKLOAD)
_MOE_COMBINE = Operator(combining.WORKLOAD)
_MOE_GEMM_COMBINE = Operator(multiplying.WORKLOAD)


class Dispatched(NamedTuple):
    """The rows that its experts' ranks make of each token, by expert, and their plan (docs/kernels/moe.md). From row
    offsets[-1] on all is undefined.
    """

    rows: Tensor
    """[capacity, hidden]: the tokens; [capacity, width]: the experts' products."""
    offsets: Tensor
    """int32 [local experts + 1]: local expert e has rows offsets[e] to offsets[e + 1] - 1."""
    pairs: Tensor
    """int32 [capacity]: (source rank * tokens + token) * top_k + place among the token's ids, for each row."""
    gates: Tensor
    """fp32 [capacity]: each row's gate."""


class ScaledDispatched(NamedTuple):
    """The result of ``moe_dispatch`` for fp8 tokens: that of ``Dispatched``, and the rows' scales."""

    rows: Tensor
    """fp8 [capacity, hidden], by expert."""
    offsets: Tensor
    pairs: Tensor
    gates: Tensor
    scales: Tensor
    """fp32 [capacity, 1] or [capacity, hidden / 128]: those of each row's token."""


@overload
def moe_dispatch(
    context: Context, x: Tensor, ids: Tensor, gates: Tensor,
    *, experts: int, tokens: int | None = None, routing: str = "uniform", exponent: float = 0.0, histogram: str = "",
    scale_x: None = None, out: tuple[Tensor, ...] | None = None, config: Config | None = None,
) -> Dispatched: ...  # fmt: skip


@overload
def moe_dispatch(
    context: Context, x: Tensor, ids: Tensor, gates: Tensor,
    *, experts: int, tokens: int | None = None, routing: str = "uniform", exponent: float = 0.0, histogram: str = "",
    scale_x: Tensor, out: tuple[Tensor, ...] | None = None, config: Config | None = None,
) -> ScaledDispatched: ...  # fmt: skip


def moe_dispatch(
    context: Context, x: Tensor, ids: Tensor, gates: Tensor,
    *, experts: int, tokens: int | None = None, routing: str = "uniform", exponent: float = 0.0, histogram: str = "",
    scale_x: Tensor | None = None, out: tuple[Tensor, ...] | None = None, config: Config | None = None,
) -> Dispatched | ScaledDispatched:  # fmt: skip
    """Every token to the ranks of its experts, laid out there by expert, by the tuned config, on the current stream.

    Collective. ``x`` [tokens, hidden] is contiguous and bf16, fp16 or fp32; ``ids`` of any integer type (int32 is read
    as it is) and ``gates`` fp32 are [tokens, top_k]. An id is a number below ``experts``, of which rank r holds as many
    as every rank, in order; -1, like any other number, is none. A token of such ids alone does not exist. An expert
    that a token names twice gets it twice, in two rows, so that their gates add up; where top_k is above the experts of
    a rank, that may be more rows than ``capacity``, which ``context.check()`` says, or, where the config's mode is
    ``bsp``, that rank's gates, which are NaN then. The host reads nothing.
    Every rank has as many tokens, 0 too. Where their numbers differ, ``tokens``, the same on every rank, is the most
    that any of them has, here and in the combine: ``capacity`` and ``pairs`` are those of so many on every rank, and
    the operands of a rank with fewer are copied.
    ``routing``, ``exponent`` and ``histogram`` name the problem whose tuned config is taken: how popular the experts
    are expected to be, with ``recorded`` by the counts of a file, ``histogram=autotune.recorded_histogram(FILE)``. They
    change no result. ``out`` is what is returned, as a tuple.

    Of fp8 x has fp32 scales, ``scale_x`` [tokens, 1] or [tokens, hidden / 128], which travel with their tokens: rows
    are fp8, and what is returned has their scales, too.
    """
    options = experts, routing, exponent, histogram
    try:
        if tokens is not None or getattr(ids, "dtype", None) is not torch.int32:
            x, ids, gates, scale_x = as_the_most(tokens, x, ids, gates, scale_x)
        if scale_x is None:
            return Dispatched(*_MOE_DISPATCH.all_of(context, (x, ids, gates), options, out, config))
        operands = x, ids, gates, scale_x
        return ScaledDispatched(*_SCALED_MOE_DISPATCH.all_of(context, operands, options, out, config))
    except Exception as error:  # whatever it is: the other ranks wait
        _MOE_DISPATCH.refuse(context, (x, ids, gates), out, config, error)
        raise


def moe_dispatch_gemm(
    context: Context, x: Tensor, ids: Tensor, gates: Tensor, b: Tensor,
    *, experts: int, tokens: int | None = None, epilogue: str = "swiglu", gate_up: str = "halves",
    bias: Tensor | None = None, routing: str = "uniform", exponent: float = 0.0, histogram: str = "",
    scale_x: Tensor | None = None, scale_b: Tensor | None = None, fast_accum: bool = False,
    out: tuple[Tensor, Tensor, Tensor, Tensor] | None = None, config: Config | None = None,
) -> Dispatched:  # fmt: skip
    """``moe_dispatch``, and each row times its expert's B, by the tuned config, on the current stream. Collective.

    ``x``, ``ids``, ``gates``, ``experts``, ``tokens``, ``routing``, ``exponent`` and ``histogram`` are as there. ``b``
    [local experts, hidden, columns] holds the B of this rank's experts, of the type of ``x``; contiguous, or each the
    transpose of a contiguous matrix. With the epilogue ``swiglu`` its columns are gate and up, ``gate_up`` says how
    they lie, and rows are [capacity, columns / 2], SiLU(gate) * up; ``swiglu_oai`` is gpt-oss' clamped form of that
    (``MoeDispatchGemm``); with ``none`` they are the product, [capacity, columns]. ``bias`` [local experts, columns],
    of the type of what is returned, is added to the product.

    Of fp8 both have fp32 scales, which travel with their tokens, and rows are bf16: ``scale_x`` [tokens, 1] and
    ``scale_b`` [local experts, 1, columns]; or, by blocks, [tokens, hidden / 128] and [local experts, hidden / 128,
    columns / 128]. ``b`` and ``scale_b`` are then transposes of contiguous tensors. ``fast_accum``: as in
    ``all_gather_gemm``.
    """
    try:
        if tokens is not None or getattr(ids, "dtype", None) is not torch.int32:
            x, ids, gates, scale_x = as_the_most(tokens, x, ids, gates, scale_x)
        options, operands = (
            (experts, epilogue, gate_up, routing, exponent, fast_accum, histogram),
            (x, ids, gates, b, scale_x, scale_b, bias),
        )
        return Dispatched(*_MOE_DISPATCH_GEMM.all_of(context, operands, options, out, config))
    except Exception as error:  # whatever it is: the other ranks wait
        _MOE_DISPATCH_GEMM.refuse(context, (x, ids, gates, b, scale_x, scale_b, bias), out, config, error)
        raise


def moe_combine(
    context: Context, rows: Tensor, offsets: Tensor, pairs: Tensor, gates: Tensor,
    ids: Tensor, *, tokens: int | None = None, routing: str = "uniform", exponent: float = 0.0,
    histogram: str = "", deterministic: bool = False, out: Tensor | None = None, config: Config | None = None,
) -> Tensor:  # fmt: skip
    """Each token's sum of gate * row over its experts' rows, at the token's rank, by the tuned config, on the current
    stream.

    Collective. ``rows`` [capacity, hidden], bf16, fp16 or fp32, lie by expert, and ``offsets``, ``pairs`` and ``gates``
    are their plan, as ``moe_dispatch`` returns it; ``ids`` [tokens, top_k] are those of this rank's tokens that it was
    given, and so is ``tokens``. All are contiguous. Returns [tokens, hidden], as this rank has, zero for a token
    without experts; ``out`` where one is given. The host reads nothing. ``deterministic`` demands the same bits in
    every call with the same inputs, which our kernels give in any case. ``routing``, ``exponent`` and ``histogram`` are
    as in ``moe_dispatch``.
    """
    try:
        more = 0
        if tokens is not None or getattr(ids, "dtype", None) is not torch.int32:
            ids, more = ids_of_the_most(ids, tokens)
        operands, options = (rows, offsets, pairs, gates, ids), (routing, exponent, deterministic, histogram)
        sums = _MOE_COMBINE(context, operands, options, None if more else out, config)
        return own_rows(sums, more, out) if more else sums
    except Exception as error:  # whatever it is: the other ranks wait
        _MOE_COMBINE.refuse(context, (rows, offsets, pairs, gates, ids), out, config, error)
        raise


def moe_gemm_combine(
    context: Context, a: Tensor, b: Tensor, offsets: Tensor, pairs: Tensor,
    gates: Tensor, ids: Tensor, *, tokens: int | None = None, bias: Tensor | None = None, routing: str = "uniform",
    exponent: float = 0.0, histogram: str = "", deterministic: bool = False, scale_a: Tensor | None = None,
    scale_b: Tensor | None = None, fast_accum: bool = False, out: Tensor | None = None,
    config: Config | None = None,
) -> Tensor:  # fmt: skip
    """Each token's sum of gate * (row of A @ its expert's B + bias), at the token's rank, by the tuned config, on the
    current stream.

    Collective. ``a`` [capacity, width], contiguous, and ``b`` [local experts, width, hidden], contiguous or each the
    transpose of a contiguous matrix, are bf16, fp16 or fp32; or fp8 with ``scale_a`` and ``scale_b``, of the forms that
    ``moe_dispatch_gemm`` has, and then the result is bf16. A's rows lie by expert, by the plan ``offsets``,
    ``pairs``, ``gates``; ``bias`` [local experts, hidden] is of the result's type. The plan, ``ids``, ``tokens``,
    ``deterministic``, ``routing``, ``exponent``, ``histogram`` and what is returned are as in ``moe_combine``.
    """
    operands = a, b, offsets, pairs, gates, ids, scale_a, scale_b, bias
    try:
        more = 0
        if tokens is not None or getattr(ids, "dtype", None) is not torch.int32:
            ids, more = ids_of_the_most(ids, tokens)
            operands = (*operands[:5], ids, *operands[6:])
        options = routing, exponent, deterministic, fast_accum, histogram
        sums = _MOE_GEMM_COMBINE(context, operands, options, None if more else out, config)
        return own_rows(sums, more, out) if more else sums
    except Exception as error:  # whatever it is: the other ranks wait
        _MOE_GEMM_COMBINE.refuse(context, operands, out, config, error)
        raise
