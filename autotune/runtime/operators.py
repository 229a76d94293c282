"""Operators: one call runs a tuned kernel; the caller needs no knowledge of modes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Unpack, overload

import torch

from autotune.config import Config
from autotune.errors import InvalidProblem
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.launching.tensors import TORCH_DTYPES
from autotune.runtime import gradients
from autotune.runtime.call import demand_no_gradient, needs_gradient
from autotune.runtime.context import Context
from autotune.runtime.folding import (
    Call,
    averaged,
    by_rows,
    columns_scattered,
    dimension,
    divisor,
    folded,
    folded_with_a,
    gathered,
    scattered,
)
from autotune.runtime.operator import OPERATORS, Operator
from autotune.runtime.ragged import gather_ragged, is_ragged
from autotune.runtime.several import GatherOptions, whole_of
from autotune.runtime.workspace import Operands
from autotune.workloads.built_in import all_gather_gemm as gathering
from autotune.workloads.built_in import all_reduce_norm as norming
from autotune.workloads.built_in import flash_decode as decoding
from autotune.workloads.built_in import gemm_all_reduce as reducing
from autotune.workloads.built_in import gemm_all_reduce_norm as reducing_norming
from autotune.workloads.built_in import gemm_reduce_scatter as scattering

_ALL_GATHER_GEMM = Operator(gathering.WORKLOAD, gradients.OfAllGatherGemm())
_GATHERING = Operator(gathering.RETURNING_A, gradients.OfGathering(), name="all_gather_gemm_gathered")
_KEEPING = Operator(gathering.RETURNING_A, gradients.OfKeeping(), name="all_gather_gemm_kept")
_QUANTISING = Operator(gathering.QUANTISING_C, name="all_gather_gemm_quantised")
_GEMM_REDUCE_SCATTER = Operator(scattering.WORKLOAD, gradients.OfGemmReduceScatter())
_GEMM_ALL_REDUCE = Operator(reducing.WORKLOAD, gradients.OfGemmAllReduce())
_ALL_REDUCE_NORM = Operator(norming.WORKLOAD)
_GEMM_ALL_REDUCE_NORM = Operator(reducing_norming.WORKLOAD)
_FLASH_DECODE = Operator(decoding.WORKLOAD)


def in_graphs(name: str) -> torch._ops.OpOverload:
    """An operator as a compiled graph calls it, by its name: its workload's, or ``all_gather_gemm_gathered``."""
    return OPERATORS[name].in_graphs


_WORDS: dict[torch.dtype | None, str] = {None: "auto", **{dtype: name for name, dtype in TORCH_DTYPES.items()}}


def _word(out_dtype: torch.dtype | None) -> str:
    """The problem's word for a result's element type. Raises InvalidProblem for a type that no result has."""
    word = _WORDS.get(out_dtype)
    if word is None:
        raise InvalidProblem(f"out_dtype={out_dtype}: allowed: None, {', '.join(map(str, TORCH_DTYPES.values()))}")
    return word


# fmt: off
@overload
def all_gather_gemm(
    context: Context, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None,
    *, return_gathered: Literal[True], **options: Unpack[GatherOptions],
) -> tuple[torch.Tensor, torch.Tensor]: ...


@overload
def all_gather_gemm(
    context: Context, a: torch.Tensor, b: Sequence[torch.Tensor], bias: torch.Tensor | None = None,
    *, return_gathered: Literal[True], **options: Unpack[GatherOptions],
) -> tuple[list[torch.Tensor], torch.Tensor]: ...


@overload
def all_gather_gemm(
    context: Context, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None,
    *, return_gathered: Literal[False] = False, **options: Unpack[GatherOptions],
) -> torch.Tensor: ...


@overload
def all_gather_gemm(
    context: Context, a: torch.Tensor, b: Sequence[torch.Tensor], bias: torch.Tensor | None = None,
    *, return_gathered: Literal[False] = False, **options: Unpack[GatherOptions],
) -> list[torch.Tensor]: ...
# fmt: on


def all_gather_gemm(
    context: Context, a: torch.Tensor, b: torch.Tensor | Sequence[torch.Tensor], bias: torch.Tensor | None = None,
    *, scale_a: torch.Tensor | None = None, scale_b: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None, fast_accum: bool = False, layout: str = "rows",
    gather_dim: int | None = None, rows: Sequence[int] | None = None, in_place: bool = False,
    keep_gathered: bool = False, epilogue: str = "none", gate_up: str = "halves", return_gathered: bool = False,
    quantise: bool = False,
    out: torch.Tensor | None = None, config: Config | None = None,
) -> Any:  # fmt: skip
    """C = all_gather(A) @ B (+ bias) with the tuned config for this problem, on the current stream. Collective.

    ``a`` is this rank's shard: [m / world_size, k] for layout ``rows``, [m, k / world_size] for ``k``; bf16, fp16,
    fp32, or fp8 with scales. ``b`` is [k, n_local], ``bias`` [n_local]. Which strides cost a copy says
    docs/operators.md. ``a`` may have more dimensions, [..., k]: ``gather_dim`` is the one that the ranks share, by
    default the first or, for layout ``k``, the last; the last one means layout ``k``. The shards are of one shape,
    unless ``rows``, the same on all ranks, says how long each of them is in ``gather_dim``. A may have no rows.
    Returns C [m, n_local], or [..., n_local] with all of ``gather_dim``; ``out`` where one is given. In the modes in
    which peers read the shard it is copied first. With ``in_place`` it never is: ``a`` is the tensor of
    ``all_gather_shard``. That is another problem, with a tuned config of its own.

    Of fp8 (e4m3; A also e5m2) C is the product of the dequantised matrices, rounded to ``out_dtype``: bf16, the
    default, fp16 or fp32; ``bias`` is of that type, ``b`` the transpose of a contiguous matrix. Scales are fp32:
    ``scale_a`` and ``scale_b`` [1] and [1]; [rows of a, 1] and [1, n_local]; or, by blocks of 128, [rows of a, columns
    of a / 128] and [k / 128, n_local / 128], the latter rounded up, the transpose of a contiguous matrix. One scale for
    all of A, and in layout ``k`` those of its rows, must be the same on every rank. ``fast_accum`` lets sm_90 add up in
    its tensor cores, less exactly.

    B's gradient takes the whole A. The backward gathers it anew, on its way into the GEMM, and only the shard is kept
    until then. With ``keep_gathered``, where ``b`` needs a gradient, the whole A is kept instead, as by a call with
    ``return_gathered``: that problem's config is looked up.

    With ``epilogue`` ``swiglu``, ``geglu`` or ``geglu_tanh`` ``b`` holds gate and up, and C [m, n_local / 2] is
    activation(gate) * up, the bias added before. ``gate_up`` says how they lie in ``b``: ``halves`` [gate, up], or
    ``interleaved``, column by column.

    ``quantise``, with an epilogue: C is fp8, and what is returned is (C, scales): fp32 [m, n_local / 2 / 128], one for
    each row and 128 columns, as ``scale_a`` of the next GEMM takes them. ``a`` is a matrix then. Another problem,
    ``quantised``, with a config of its own; such a call has no backward.

    ``b`` may be several matrices, such as those of q, k and v, which lie side by side in memory, see ``side_by_side``:
    A is gathered once, and what is returned is a list with the columns of C that belong to each, views of one result.
    It is the problem of one B with all their columns; ``bias``, ``scale_b`` and ``out`` are those of all of them.

    With ``return_gathered`` the gathered A, a tensor of its own in the dimensions of ``a``, is returned as well, after
    C or the list: another problem, ``gathered``, with a config of its own. Such a call keeps it for its backward; what
    is computed from it has gradients, too, which are summed over ranks as C's are: by the library after a GEMM, whether
    there are any or not, as all ranks have to exchange the same. ``keep_gathered`` is faster where A is not needed.

    Raises InvalidProblem where shapes, strides or types do not fit or ``a`` is not that tensor, HeapExhausted where the
    context's heap is too small, and on the first call of a problem what ``lookup`` raises.
    """
    try:
        if not isinstance(b, torch.Tensor):
            if epilogue != "none":
                raise InvalidProblem(f"epilogue={epilogue} takes gate and up in one b, not {len(b)} Bs")
            again: Any = all_gather_gemm  # its type depends on the last option
            whole = again(
                context, a, whole_of(b), bias, scale_a=scale_a, scale_b=scale_b, out_dtype=out_dtype,
                fast_accum=fast_accum, layout=layout, gather_dim=gather_dim, rows=rows, in_place=in_place,
                keep_gathered=keep_gathered, out=out, config=config, return_gathered=return_gathered,
            )  # fmt: skip
            c, *gathered_a = whole if return_gathered else (whole,)
            parts = list(c.split([each.shape[1] for each in b], dim=-1))
            return (parts, *gathered_a) if return_gathered else parts
        if quantise:
            if a.dim() != 2 or gather_dim is not None or rows is not None or return_gathered or out is not None:
                raise InvalidProblem("quantise takes a matrix a, and neither gather_dim, rows, return_gathered nor out")
            wanted = layout, in_place, _word(out_dtype), fast_accum, epilogue, gate_up
            return tuple(_QUANTISING.all_of(context, (a, b, bias, scale_a, scale_b), wanted, None, config))
        operator: Call = _keeping if keep_gathered and out is None and needs_gradient((b,)) else _ALL_GATHER_GEMM
        if gather_dim is None and rows is None and a.dim() == 2 and not return_gathered:
            options: tuple[Any, ...] = layout, in_place, _word(out_dtype), fast_accum, epilogue, gate_up
            return operator(context, (a, b, bias, scale_a, scale_b), options, out, config)
        dim = dimension("gather_dim", _default_dim(layout) if gather_dim is None else gather_dim, a)
        layout = _layout_of(dim == a.dim() - 1, layout, gather_dim)
        options = layout, in_place, _word(out_dtype), fast_accum, epilogue, gate_up
        if return_gathered:
            if rows is not None:
                raise InvalidProblem("return_gathered with rows: shards of unequal length are gathered with padding")
            folding = gathered(a, dim, context.heap.world_size)
            return folded_with_a(_GATHERING, context, folding, (a, b, bias, scale_a, scale_b), options, out, config)

        def gather(a: torch.Tensor, scale_a: torch.Tensor | None, out: torch.Tensor | None = None) -> torch.Tensor:
            folding = gathered(a, dim, context.heap.world_size)
            return folded(operator, context, folding, (a, b, bias, scale_a, scale_b), options, out, config)

        if rows is None or not is_ragged(rows, context.heap, a, dim, in_place):
            return gather(a, scale_a, out)
        if out is not None:
            demand_no_gradient((a, b, bias, out))
        return gather_ragged(gather, rows, dim, a, scale_a, out)
    except Exception as error:  # whatever it is: the other ranks wait
        operands = a, b if isinstance(b, torch.Tensor) or b is None else a, bias, scale_a, scale_b
        _ALL_GATHER_GEMM.refuse(context, operands, out, config, error)
        raise


def _keeping(
    context: Context, operands: Operands, options: tuple[Any, ...], out: torch.Tensor | None, config: Config | None
) -> torch.Tensor:
    """C, without ``out``, of a call that keeps the gathered A for its backward."""
    result, _ = _KEEPING.all_of(context, operands, options, None, config)
    return result


def _default_dim(layout: str) -> int:
    return -1 if layout == "k" else 0


def _layout_of(along_k: bool, layout: str, gather_dim: int | None) -> str:
    """The problem's word for a gathered dimension. Raises InvalidProblem where ``layout`` says another one."""
    if layout == "k" and not along_k:
        raise InvalidProblem(
            f"layout='k', gather_dim={gather_dim}: layout k gathers the last dimension; leave one of the two out"
        )
    return "k" if along_k else layout


def all_gather_shard(context: Context, problem: AllGatherGemm, *, config: Config | None = None) -> torch.Tensor:
    """The tensor for this rank's shard of A that ``all_gather_gemm`` with ``in_place`` takes. Collective.

    The problem has ``in_place``, too. It is the same memory every time; what comes after a call of the operator on its
    stream may write it anew. Its contents are undefined. Raises what the operator's first call raises.
    """
    try:
        ranks = context.heap.world_size
        if problem.world_size != ranks:
            raise InvalidProblem(f"the problem has {problem.world_size} ranks, the context has {ranks}")
        if not problem.in_place:
            raise InvalidProblem(f"{problem}: pass in_place=True here and to all_gather_gemm, which otherwise copies A")
        operator = _QUANTISING if problem.quantised else _GATHERING if problem.gathered else _ALL_GATHER_GEMM
        shard = context.workspace(operator.workload, problem, config).shard
        assert shard is not None
        return shard
    except Exception as error:  # whatever it is: the other ranks wait
        context.refuse(error)
        raise


def gemm_reduce_scatter(
    context: Context, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None,
    *, scale_a: torch.Tensor | None = None, scale_b: torch.Tensor | None = None,
    residual: torch.Tensor | None = None, out_dtype: torch.dtype | None = None, fast_accum: bool = False,
    wire: str = "auto", scatter_dim: int = 0, reduce_op: str = "sum",
    out: torch.Tensor | None = None, config: Config | None = None,
) -> torch.Tensor:  # fmt: skip
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
        options, operands = (_word(out_dtype), fast_accum, wire), (a, b, bias, scale_a, scale_b, residual)
        if a.dim() == 2 and scatter_dim == 0 and reduce_op == "sum":
            return _GEMM_REDUCE_SCATTER(context, operands, options, out, config)
        parts, dim = divisor(reduce_op, context.heap.world_size), dimension("scatter_dim", scatter_dim, a)
        if dim == a.dim() - 1:
            return columns_scattered(_GEMM_REDUCE_SCATTER, context, operands, options, parts, out, config)
        folding = scattered(a, dim, context.heap.world_size)
        if parts == 1:
            return folded(_GEMM_REDUCE_SCATTER, context, folding, operands, options, out, config)
        operands = a, b, gradients.for_own_rows(context, bias), scale_a, scale_b, residual
        return averaged(_GEMM_REDUCE_SCATTER, context, folding, operands, options, parts, out, config)
    except Exception as error:  # whatever it is: the other ranks wait
        _GEMM_REDUCE_SCATTER.refuse(context, (a, b, bias, scale_a, scale_b, residual), out, config, error)
        raise


def gemm_all_reduce(
    context: Context, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None,
    *, scale_a: torch.Tensor | None = None, scale_b: torch.Tensor | None = None,
    residual: torch.Tensor | None = None, out_dtype: torch.dtype | None = None, fast_accum: bool = False,
    wire: str = "auto", deterministic: bool = False, reduce_op: str = "sum",
    out: torch.Tensor | None = None, config: Config | None = None,
) -> torch.Tensor:  # fmt: skip
    """C = sum over ranks of A @ B (+ bias) (+ residual), on every rank, by the tuned config, on the current stream.
    Collective.

    ``a`` [m, k_local] or [..., k_local], bf16, fp16 or fp32, and ``b`` [k_local, n] are this rank's slices of the
    depth; ``bias`` [n], the same on all ranks, is added once. fp8 with scales, ``out_dtype`` and ``fast_accum`` are as
    in ``all_gather_gemm``; each rank has scales of its own. ``deterministic`` demands the same bits on every rank and
    in every call with the same inputs. ``reduce_op`` is as in ``gemm_reduce_scatter``. Returns C [m, n] or [..., n],
    ``out`` where one is given. ``residual``, the same on all ranks, has that shape and type, contiguous; our kernels
    add bias and residual in fp32 and round once. ``wire`` is as in ``gemm_reduce_scatter``, of what is to be summed.

    Raises InvalidProblem where shapes, strides or types do not fit, HeapExhausted where the context's heap is too
    small, and on the first call of a problem what ``lookup`` raises.
    """
    try:
        options: tuple[Any, ...] = deterministic, _word(out_dtype), fast_accum, wire
        operands: Operands = a, b, bias, scale_a, scale_b, residual
        if a.dim() == 2 and reduce_op == "sum":
            return _GEMM_ALL_REDUCE(context, operands, options, out, config)
        parts = divisor(reduce_op, context.heap.world_size)
        if parts == 1:
            return folded(_GEMM_ALL_REDUCE, context, by_rows(a), operands, options, out, config)
        return averaged(_GEMM_ALL_REDUCE, context, by_rows(a), operands, options, parts, out, config)
    except Exception as error:  # whatever it is: the other ranks wait
        _GEMM_ALL_REDUCE.refuse(context, (a, b, bias, scale_a, scale_b, residual), out, config, error)
        raise


def all_reduce_norm(
    context: Context, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor,
    *, eps: float = 1e-6, in_place: bool = False, out: tuple[torch.Tensor, torch.Tensor] | None = None,
    config: Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """RMSNorm of (sum over ranks of x) + residual, and that total, by the tuned config, on the current stream.

    Collective. ``x`` [m, n] is this rank's part; ``residual`` [m, n] and ``weight`` [n] are the same on all ranks. All
    are contiguous and bf16, fp16 or fp32. Returns normed [m, n], which is total / rms(total) * weight, and total
    [m, n], the residual of the next layer; rms is the root of a row's mean square + ``eps``. The modes of our kernels
    give the same bits on every rank. ``out`` is (normed, total), which share no memory with an operand.
    In the library's modes its all-reduce overwrites its operand, so ``x`` is copied first. With ``in_place`` it is not:
    the contents of ``x`` are undefined afterwards. That is another problem, with a tuned config of its own. Under
    ``torch.compile`` ``x`` is copied in any case.

    Raises InvalidProblem where shapes, strides or types do not fit, HeapExhausted where the context's heap is too
    small, and on the first call of a problem what ``lookup`` raises.
    """
    # A graph must not hold a call that overwrites what its schema calls an input.
    in_place = in_place and not torch.compiler.is_compiling()
    normed, total = _ALL_REDUCE_NORM.all_of(context, (x, residual, weight), (eps, in_place), out, config)
    if in_place:
        torch.autograd.graph.increment_version(x)
    return normed, total


def gemm_all_reduce_norm(
    context: Context, a: torch.Tensor, b: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *, eps: float = 1e-6, scale_a: torch.Tensor | None = None, scale_b: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None, fast_accum: bool = False, deterministic: bool = False,
    out: tuple[torch.Tensor, torch.Tensor] | None = None, config: Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """RMSNorm of (sum over ranks of A @ B) (+ bias) + residual, and that total, by the tuned config, on the current
    stream. Collective.

    ``a``, ``b``, ``bias``, their scales, ``out_dtype``, ``fast_accum`` and ``deterministic`` are as in
    ``gemm_all_reduce``, ``residual`` [m, n], ``weight`` [n] and ``eps`` as in ``all_reduce_norm``, of the result's
    type. Returns normed and total, [m, n] each; they are ``out`` where that is given, and share no memory with an
    operand.

    Raises InvalidProblem where shapes, strides or types do not fit, HeapExhausted where the context's heap is too
    small, and on the first call of a problem what ``lookup`` raises.
    """
    operands = a, b, bias, scale_a, scale_b, residual, weight
    try:
        options = deterministic, _word(out_dtype), fast_accum, eps
        normed, total = _GEMM_ALL_REDUCE_NORM.all_of(context, operands, options, out, config)
    except Exception as error:  # whatever it is: the other ranks wait
        _GEMM_ALL_REDUCE_NORM.refuse(context, operands, out, config, error)
        raise
    return normed, total


def flash_decode(
    context: Context, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, block_table: torch.Tensor,
    lengths: torch.Tensor, *, k_scale: torch.Tensor | None = None, v_scale: torch.Tensor | None = None,
    soft_cap: float = 0, ragged: bool = False, result: str = "replicated", out: torch.Tensor | None = None,
    config: Config | None = None,
) -> torch.Tensor:  # fmt: skip
    """softmax(q K^T / sqrt(head_dim)) V over the tokens of all ranks, by the tuned config, on the current stream.

    Collective. All are contiguous: ``q`` [batch, q_heads, head_dim], bf16 or fp16, the same on every rank; this rank's
    ``k_cache`` and ``v_cache`` [pages, page_size, kv_heads, head_dim], of any number of pages, of q's type, or of fp8
    with ``k_scale`` and ``v_scale`` in fp32, both [1] or both [kv_heads]; ``block_table`` int32 [batch, pages of a
    sequence]: which page holds a sequence's tokens; ``lengths`` int32 [batch]: tokens of each sequence on this rank, at
    most as many as a row of the table has room for, which nobody checks. ``soft_cap``, 50 or 50.0, bounds the
    logits, 0 does not. ``ragged`` asks for what was tuned with different lengths; the result does not depend on it.
    Returns [batch, q_heads, head_dim] on every rank, ``out`` where one is given; zeros for a sequence without tokens.
    With ``result`` ``heads`` rank r gets the r-th equal share of the query heads alone, [batch, q_heads / world_size,
    head_dim], as decode context parallelism wants it: another problem, with a fraction of the exchange.

    Raises InvalidProblem where shapes, strides or types do not fit, HeapExhausted where the context's heap is too
    small, and on the first call of a problem what ``lookup`` raises.
    """
    if isinstance(soft_cap, float) and soft_cap.is_integer():
        soft_cap = int(soft_cap)  # as graphs have it
    return _FLASH_DECODE(
        context, (q, k_cache, v_cache, block_table, lengths, k_scale, v_scale), (soft_cap, ragged, result), out,
        config,
    )  # fmt: skip
