"""GEMMs whose products, and norms whose inputs, are summed over ranks."""

from __future__ import annotations

from typing import Any

import torch

from autotune.config import Config
from autotune.errors import InvalidProblem
from autotune.kernels.launching.gemm import order_of
from autotune.runtime import gradients
from autotune.runtime.call import demand_no_gradient, word_of
from autotune.runtime.context import Context
from autotune.runtime.folding import Folding, by_rows, dimension, scattered
from autotune.runtime.operator import Operator
from autotune.runtime.workspace import Operands
from autotune.workloads.built_in import all_reduce_norm as norming
from autotune.workloads.built_in import gemm_all_reduce as reducing
from autotune.workloads.built_in import gemm_all_reduce_norm as reducing_norming
from autotune.workloads.built_in import gemm_reduce_scatter as scattering

Tensor = torch.Tensor

_GEMM_REDUCE_SCATTER = Operator(scattering.WORKLOAD, gradients.OfGemmReduceScatter())
_GEMM_ALL_REDUCE = Operator(reducing.WORKLOAD, gradients.OfGemmAllReduce())
_ALL_REDUCE_NORM = Operator(norming.WORKLOAD)
_GEMM_ALL_REDUCE_NORM = Operator(reducing_norming.WORKLOAD)
_QUANTISING_NORM = Operator(norming.QUANTISING_NORM, name="all_reduce_norm_quantised")
_QUANTISING_GEMM_NORM = Operator(reducing_norming.QUANTISING_NORM, name="gemm_all_reduce_norm_quantised")

REDUCTIONS = ("sum", "avg")


def gemm_reduce_scatter(
    context: Context, a: Tensor, b: Tensor, bias: Tensor | None = None,
    *, scale_a: Tensor | None = None, scale_b: Tensor | None = None,
    residual: Tensor | None = None, out_dtype: torch.dtype | None = None, fast_accum: bool = False,
    wire: str = "auto", scatter_dim: int = 0, reduce_op: str = "sum",
    out: Tensor | None = None, config: Config | None = None,
) -> Tensor:  # fmt: skip
    """This rank's rows of C = sum over ranks of A @ B (+ bias) (+ residual), by the tuned config, on the current
    stream. Collective.

    ``a`` [m, k_local], bf16, fp16 or fp32, and ``b`` [k_local, n] are this rank's slices of the depth; ``bias`` [n],
    the same on all ranks, is added once. fp8 with scales, ``out_dtype`` and ``fast_accum`` are as in
    ``all_gather_gemm``; each rank has scales of its own. Returns [m / world_size, n], rows rank * m / world_size and so
    on of C; ``out`` where one is given. ``residual`` has the shape and type of what is returned, contiguous; our
    kernels add bias and residual in fp32 and round once. ``wire="fp8"`` lets parts travel as e4m3 with a scale for each
    row of a tile: fewer bytes, an error of about 2.6 % of a part, and no gradients.

    ``a`` may have more dimensions, [..., k_local]: the ranks share ``scatter_dim`` of C. The last one is its columns:
    then the kernels compute the transpose of C, a problem with m and n swapped. ``reduce_op`` is ``sum`` or ``avg``,
    which divides the rounded sum by the number of ranks before bias and residual are added: its problem has neither.

    Raises InvalidProblem where shapes, strides or types do not fit or the ranks do not divide m, HeapExhausted where
    the context's heap is too small, and on the first call of a problem what ``lookup`` raises.
    """
    try:
        options, operands = (word_of(out_dtype), fast_accum, wire), (a, b, bias, scale_a, scale_b, residual)
        if a.dim() == 2 and scatter_dim == 0 and reduce_op == "sum":
            return _GEMM_REDUCE_SCATTER(context, operands, options, out, config)
        parts, dim = _divisor(reduce_op, context.heap.world_size), dimension("scatter_dim", scatter_dim, a)
        if dim == a.dim() - 1:
            return _columns_scattered(context, operands, options, parts, out, config)
        folding = scattered(a, dim, context.heap.world_size)
        if parts == 1:
            return _GEMM_REDUCE_SCATTER(context, operands, options, out, config, folding)
        operands = a, b, gradients.for_own_rows(context, bias), scale_a, scale_b, residual
        return _averaged(_GEMM_REDUCE_SCATTER, context, folding, operands, options, parts, out, config)
    except Exception as error:  # whatever it is: the other ranks wait
        _GEMM_REDUCE_SCATTER.refuse(context, (a, b, bias, scale_a, scale_b, residual), out, config, error)
        raise


def gemm_all_reduce(
    context: Context, a: Tensor, b: Tensor, bias: Tensor | None = None,
    *, scale_a: Tensor | None = None, scale_b: Tensor | None = None,
    residual: Tensor | None = None, out_dtype: torch.dtype | None = None, fast_accum: bool = False,
    wire: str = "auto", deterministic: bool = False, reduce_op: str = "sum",
    out: Tensor | None = None, config: Config | None = None,
) -> Tensor:  # fmt: skip
    """C = sum over ranks of A @ B (+ bias) (+ residual), on every rank, by the tuned config, on the current stream.
    Collective.

    ``a`` [m, k_local] or [..., k_local], bf16, fp16 or fp32, and ``b`` [k_local, n] are this rank's slices of the
    depth; ``bias`` [n], the same on all ranks, is added once. fp8 with scales, ``out_dtype`` and ``fast_accum`` are as
    in ``all_gather_gemm``; each rank has scales of its own. ``deterministic`` demands the same bits on every rank and
    in every call with the same inputs. ``reduce_op`` is as in ``gemm_reduce_scatter``. Returns C [m, n] or [..., n],
    ``out`` where one is given. ``residual``, the same on all ranks, has that shape and type, contiguous; our kernels
    add bias and residual in fp32 and round once. ``wire`` is as in ``gemm_reduce_scatter``, of what is to be summed.
    """
    try:
        options: tuple[Any, ...] = deterministic, word_of(out_dtype), fast_accum, wire
        operands: Operands = a, b, bias, scale_a, scale_b, residual
        if a.dim() == 2 and reduce_op == "sum":
            return _GEMM_ALL_REDUCE(context, operands, options, out, config)
        parts = _divisor(reduce_op, context.heap.world_size)
        if parts == 1:
            return _GEMM_ALL_REDUCE(context, operands, options, out, config, by_rows(a))
        return _averaged(_GEMM_ALL_REDUCE, context, by_rows(a), operands, options, parts, out, config)
    except Exception as error:  # whatever it is: the other ranks wait
        _GEMM_ALL_REDUCE.refuse(context, (a, b, bias, scale_a, scale_b, residual), out, config, error)
        raise


def all_reduce_norm(
    context: Context, x: Tensor, residual: Tensor, weight: Tensor,
    *, eps: float = 1e-6, in_place: bool = False, out: tuple[Tensor, Tensor] | None = None,
    config: Config | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """RMSNorm of (sum over ranks of x) + residual, and that total, by the tuned config, on the current stream.

    Collective. ``x`` [m, n] is this rank's part; ``residual`` [m, n] and ``weight`` [n] are the same on all ranks. All
    are contiguous and bf16, fp16 or fp32. Returns normed [m, n], which is total / rms(total) * weight, and total
    [m, n], the residual of the next layer; rms is the root of a row's mean square + ``eps``. The modes of our kernels
    give the same bits on every rank. ``out`` is (normed, total), which share no memory with an operand.
    In the library's modes its all-reduce overwrites its operand, so ``x`` is copied first. With ``in_place`` it is not:
    the contents of ``x`` are undefined afterwards. That is another problem, with a tuned config of its own. Under
    ``torch.compile`` ``x`` is copied in any case.
    """
    # A graph must not hold a call that overwrites what its schema calls an input.
    in_place = in_place and not torch.compiler.is_compiling()
    normed, total = _ALL_REDUCE_NORM.all_of(context, (x, residual, weight), (eps, in_place), out, config)
    if in_place:
        torch.autograd.graph.increment_version(x)
    return normed, total


def all_reduce_norm_quantised(
    context: Context, x: Tensor, residual: Tensor, weight: Tensor,
    *, scales: str, eps: float = 1e-6, out: tuple[Tensor, Tensor, Tensor] | None = None,
    config: Config | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """``all_reduce_norm`` whose norm is fp8 (e4m3): that, total, and its scales, ``scale_a`` of the next GEMM.

    ``scales``: ``row``, fp32 [m, 1], or ``block``, [m, n / 128], one for each row and 128 columns. Another problem,
    ``quantised``, with a config of its own.
    """
    options = eps, False, scales
    normed, total, found = _QUANTISING_NORM.all_of(context, (x, residual, weight), options, out, config)
    return normed, total, found


def gemm_all_reduce_norm(
    context: Context, a: Tensor, b: Tensor, residual: Tensor, weight: Tensor,
    bias: Tensor | None = None,
    *, eps: float = 1e-6, scale_a: Tensor | None = None, scale_b: Tensor | None = None,
    out_dtype: torch.dtype | None = None, fast_accum: bool = False, deterministic: bool = False,
    out: tuple[Tensor, Tensor] | None = None, config: Config | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """RMSNorm of (sum over ranks of A @ B) (+ bias) + residual, and that total, by the tuned config, on the current
    stream. Collective.

    ``a``, ``b``, ``bias``, their scales, ``out_dtype``, ``fast_accum`` and ``deterministic`` are as in
    ``gemm_all_reduce``, ``residual`` [m, n], ``weight`` [n] and ``eps`` as in ``all_reduce_norm``, of the result's
    type. Returns normed and total, [m, n] each; they are ``out`` where that is given, and share no memory with an
    operand.
    """
    operands = a, b, bias, scale_a, scale_b, residual, weight
    try:
        options = deterministic, word_of(out_dtype), fast_accum, eps
        normed, total = _GEMM_ALL_REDUCE_NORM.all_of(context, operands, options, out, config)
    except Exception as error:  # whatever it is: the other ranks wait
        _GEMM_ALL_REDUCE_NORM.refuse(context, operands, out, config, error)
        raise
    return normed, total


def gemm_all_reduce_norm_quantised(
    context: Context, a: Tensor, b: Tensor, residual: Tensor, weight: Tensor,
    bias: Tensor | None = None,
    *, scales: str, eps: float = 1e-6, scale_a: Tensor | None = None, scale_b: Tensor | None = None,
    out_dtype: torch.dtype | None = None, fast_accum: bool = False, deterministic: bool = False,
    out: tuple[Tensor, Tensor, Tensor] | None = None, config: Config | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """``gemm_all_reduce_norm`` whose norm is fp8: normed, total and scales as of ``all_reduce_norm_quantised``."""
    operands = a, b, bias, scale_a, scale_b, residual, weight
    try:
        options = deterministic, word_of(out_dtype), fast_accum, eps, scales
        normed, total, found = _QUANTISING_GEMM_NORM.all_of(context, operands, options, out, config)
    except Exception as error:  # whatever it is: the other ranks wait
        _QUANTISING_GEMM_NORM.refuse(context, operands, out, config, error)
        raise
    return normed, total, found


def _columns_scattered(
    context: Context, operands: Operands, options: tuple[Any, ...], parts: int, out: Tensor | None,
    config: Config | None,
) -> Tensor:  # fmt: skip
    """This rank's columns of C: rows of its transpose, B' @ A'. Bias and residual are added afterwards."""
    a, b, bias, scale_a, scale_b, residual = operands
    assert a is not None and b is not None
    if b.dim() != 2 or (bias is not None and bias.shape != b.shape[1:]):
        said = None if bias is None else list(bias.shape)
        raise InvalidProblem(f"b is {list(b.shape)}, bias {said}; b [depth, columns] and bias [columns] are needed")
    if out is not None:
        demand_no_gradient((*operands, out))
    shape = (*a.shape[:-1], b.shape[1] // context.heap.world_size)
    if out is not None and out.shape != shape:
        raise InvalidProblem(f"out is {list(out.shape)}; {list(shape)} expected")
    rows = a.flatten(0, -2)
    if rows.shape[0] == 0:  # no columns of the transpose, either
        empty = _GEMM_REDUCE_SCATTER(context, (rows, b, None, scale_a, scale_b, None), options, None, config)
        if out is not None:
            return out
        return _completed(empty.reshape(shape), parts, gradients.own_part(context, bias), residual)
    if scale_a is not None and scale_b is not None:
        scale_a, scale_b = _exchanged(a, b, scale_a, scale_b)
        rows = rows if order_of(rows.t()) == "nk" else rows.contiguous()  # as a B of fp8 lies
    if residual is not None and (residual.shape != shape or residual.device != a.device):
        raise InvalidProblem(f"residual is {list(residual.shape)} on {residual.device}; {list(shape)} expected")
    swapped = b.t(), rows.t(), None, scale_a, scale_b, None
    if out is not None:
        dtype = _GEMM_REDUCE_SCATTER.workload.out_dtype(swapped, options)
        if (out.dtype, out.device) != (dtype, a.device):  # a copy into it would convert in silence
            raise InvalidProblem(f"out is {out.dtype} on {out.device}; {dtype} on {a.device} expected")
    transposed = None if out is None else out.movedim(-1, 0)
    place = None
    if transposed is not None and transposed.is_contiguous() and residual is None:  # which may be ``out`` itself
        place = transposed.view(shape[-1], -1)
    result = _GEMM_REDUCE_SCATTER(context, swapped, options, place, config).view(shape[-1], *shape[:-1]).movedim(0, -1)
    result = _completed(result, parts, gradients.own_part(context, bias), residual)
    return result if out is None else out if place is not None else out.copy_(result)


def _exchanged(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> tuple[Tensor, Tensor]:
    """The scales of B' and A'. Raises InvalidProblem where these are no operands."""
    if scale_a.dim() == a.dim():
        scale_a = scale_a.flatten(0, -2)
    if scale_a.numel() > 1 and scale_a.shape[-1] != 1 or a.dtype != b.dtype:
        raise InvalidProblem(
            "the columns of C are scattered, for which A and B change places: they must be of one type, with scales by "
            f"tensors or rows; a is {a.dtype}, b {b.dtype}, scale_a {list(scale_a.shape)}"
        )
    return scale_b.t().contiguous(), scale_a.t().contiguous()


def _divisor(reduce_op: str, world_size: int) -> int:
    """The number by which a reduction divides the sum. Raises InvalidProblem for one that there is not."""
    if reduce_op not in REDUCTIONS:
        raise InvalidProblem(f"reduce_op={reduce_op!r}: allowed: {', '.join(REDUCTIONS)}")
    return world_size if reduce_op == "avg" else 1


def _averaged(
    operator: Operator, context: Context, folding: Folding, operands: Operands, options: tuple[Any, ...], parts: int,
    out: Tensor | None, config: Config | None,
) -> Tensor:  # fmt: skip
    """A sum over ranks that is divided by ``parts``. Bias and residual are added afterwards: fp16 may
    have no room for so many times their values.
    """
    a, b, bias, scale_a, scale_b, residual = operands
    if out is not None:
        demand_no_gradient((*operands, out))
        residual = None if residual is None else residual.clone()  # it may be ``out`` itself
    total = operator(context, (a, b, None, scale_a, scale_b, None), options, out, config, folding)
    return _completed(total, parts, bias, residual)


def _completed(total: Tensor, parts: int, bias: Tensor | None, residual: Tensor | None) -> Tensor:
    """A rank's ``total / parts (+ bias) (+ residual)``, in place. Raises InvalidProblem where they do not fit."""
    if parts > 1:
        total.div_(parts)
    _, bias, residual = gradients.autocast((total, bias, residual), total.device.type)
    for name, added, shape in (("bias", bias, total.shape[-1:]), ("residual", residual, total.shape)):
        if added is None:
            continue
        if (added.shape, added.dtype, added.device) != (shape, total.dtype, total.device):
            raise InvalidProblem(
                f"{name} is {list(added.shape)} {added.dtype} on {added.device}; {list(shape)} {total.dtype} on "
                f"{total.device} expected"
            )
        total.add_(added)
    return total
