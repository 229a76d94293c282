"""All-gather + GEMM: one path, and a function for each kind of result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from autotune.config import Config
from autotune.errors import InvalidProblem
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.launching.gemm import order_of
from autotune.runtime import gradients
from autotune.runtime.call import demand_no_gradient, needs_gradient, word_of
from autotune.runtime.context import Context
from autotune.runtime.folding import dimension, gathered, is_ragged, padded, unpadded
from autotune.runtime.operator import Operator
from autotune.runtime.workspace import Operands, Results
from autotune.workloads.built_in.all_gather_gemm import QUANTISING_C, RETURNING_A, WORKLOAD

Tensor = torch.Tensor

_ALL_GATHER_GEMM = Operator(WORKLOAD, gradients.OfAllGatherGemm())
_GATHERING = Operator(RETURNING_A, gradients.OfGathering(returned=True), name="all_gather_gemm_gathered")
_KEEPING = Operator(RETURNING_A, gradients.OfGathering(returned=False), name="all_gather_gemm_kept")
_QUANTISING = Operator(QUANTISING_C, name="all_gather_gemm_quantised")


def all_gather_gemm(
    context: Context, a: Tensor, b: Tensor, bias: Tensor | None = None,
    *, scale_a: Tensor | None = None, scale_b: Tensor | None = None, out_dtype: torch.dtype | None = None,
    fast_accum: bool = False, gather_dim: int = 0, rows: Sequence[int] | None = None, in_place: bool = False,
    keep_gathered: bool = False, epilogue: str = "none", gate_up: str = "halves", out: Tensor | None = None,
    config: Config | None = None,
) -> Tensor:  # fmt: skip
    """C = all_gather(A) @ B (+ bias) with the tuned config for this problem, on the current stream. Collective.

    ``a`` is this rank's shard [m / world_size, k], or, with ``gather_dim=-1``, [m, k / world_size]; bf16, fp16, fp32,
    or fp8 with scales. ``b`` is [k, n_local], ``bias`` [n_local]. Which strides cost a copy says docs/operators.md.
    ``a`` may have more dimensions, [..., k], of which the ranks share ``gather_dim``. The shards are of one shape,
    unless ``rows``, the same on all ranks, says how long each of them is in ``gather_dim``. A may have no rows.
    Returns C [m, n_local], or [..., n_local] with all of ``gather_dim``; ``out`` where one is given. In the modes in
    which peers read the shard it is copied first. With ``in_place`` it never is: ``a`` is the tensor of
    ``all_gather_shard``. That is another problem, with a tuned config of its own.

    Of fp8 (e4m3; A also e5m2) C is the product of the dequantised matrices, rounded to ``out_dtype``: bf16, the
    default, fp16 or fp32; ``bias`` is of that type, ``b`` the transpose of a contiguous matrix. Scales are fp32:
    ``scale_a`` and ``scale_b`` [1] and [1]; [rows of a, 1] and [1, n_local]; or, by blocks of 128, [rows of a, columns
    of a / 128] and [k / 128, n_local / 128], the latter rounded up, the transpose of a contiguous matrix. One scale for
    all of A, and with ``gather_dim=-1`` those of its rows, must be the same on every rank. ``fast_accum`` lets sm_90
    add up in its tensor cores, less exactly.

    B's gradient takes the whole A. The backward gathers it anew, on its way into the GEMM, and only the shard is kept
    until then. With ``keep_gathered``, where ``b`` needs a gradient, the whole A is kept instead, as by
    ``all_gather_gemm_with_gathered``: that problem's config is looked up.

    With ``epilogue`` ``swiglu``, ``geglu`` or ``geglu_tanh`` ``b`` holds gate and up, and C [m, n_local / 2] is
    activation(gate) * up, the bias added before. ``gate_up`` says how they lie in ``b``: ``halves`` [gate, up], or
    ``interleaved``, column by column.

    Raises InvalidProblem where shapes, strides or types do not fit or ``a`` is not that tensor, HeapExhausted where the
    context's heap is too small, and on the first call of a problem what ``lookup`` raises.
    """
    keeps = keep_gathered and out is None and isinstance(b, Tensor) and needs_gradient((b,))
    return _gather(
        _KEEPING if keeps else _ALL_GATHER_GEMM, context, (a, b, bias, scale_a, scale_b), gather_dim, in_place,
        out_dtype, fast_accum, epilogue, gate_up, None if out is None else (out,), config, rows,
    )[0]  # fmt: skip


def all_gather_gemm_with_gathered(
    context: Context, a: Tensor, b: Tensor, bias: Tensor | None = None,
    *, scale_a: Tensor | None = None, scale_b: Tensor | None = None, out_dtype: torch.dtype | None = None,
    fast_accum: bool = False, gather_dim: int = 0, in_place: bool = False, epilogue: str = "none",
    gate_up: str = "halves", out: tuple[Tensor, Tensor] | None = None, config: Config | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """``all_gather_gemm`` that returns C and the gathered A, a tensor of its own in the dimensions of ``a``.

    Another problem, ``gathered``, with a config of its own. The call keeps A for its backward. What is computed from it
    has gradients, too, which are summed over ranks as C's are: by the library after a GEMM, whether there are any or
    not, as all ranks have to exchange the same. ``keep_gathered`` is faster where A is not needed.
    """
    c, whole = _gather(
        _GATHERING, context, (a, b, bias, scale_a, scale_b), gather_dim, in_place, out_dtype, fast_accum, epilogue,
        gate_up, out, config,
    )  # fmt: skip
    return c, whole


def all_gather_gemm_quantised(
    context: Context, a: Tensor, b: Tensor, bias: Tensor | None = None,
    *, epilogue: str, gate_up: str = "halves", scale_a: Tensor | None = None, scale_b: Tensor | None = None,
    out_dtype: torch.dtype | None = None, fast_accum: bool = False, gather_dim: int = 0, in_place: bool = False,
    config: Config | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """``all_gather_gemm`` with an epilogue whose C is fp8, and C's scales, as ``scale_a`` of the next GEMM takes them.

    Scales are fp32 [m, n_local / 2 / 128], one for each row and 128 columns. Another problem, ``quantised``, with a
    config of its own; there is no backward.
    """
    c, scales = _gather(
        _QUANTISING, context, (a, b, bias, scale_a, scale_b), gather_dim, in_place, out_dtype, fast_accum, epilogue,
        gate_up, None, config,
    )  # fmt: skip
    return c, scales


def all_gather_gemm_several(
    context: Context, a: Tensor, bs: Sequence[Tensor], bias: Tensor | None = None,
    *, scale_a: Tensor | None = None, scale_b: Tensor | None = None, out_dtype: torch.dtype | None = None,
    fast_accum: bool = False, gather_dim: int = 0, rows: Sequence[int] | None = None, in_place: bool = False,
    keep_gathered: bool = False, out: Tensor | None = None, config: Config | None = None,
) -> list[Tensor]:  # fmt: skip
    """``all_gather_gemm`` with several Bs, such as those of q, k and v: the columns of C that belong to each.

    The Bs lie ``side_by_side`` in memory. A is gathered once, and the results are views of one C: it is the problem of
    one B with all their columns; ``bias``, ``scale_b`` and ``out`` are those of all of them.
    """
    try:
        b = whole_of(bs)
    except Exception as error:  # whatever it is: the other ranks wait
        _ALL_GATHER_GEMM.refuse(context, (a, a, bias, scale_a, scale_b), out, config, error)
        raise
    c = all_gather_gemm(
        context, a, b, bias, scale_a=scale_a, scale_b=scale_b, out_dtype=out_dtype, fast_accum=fast_accum,
        gather_dim=gather_dim, rows=rows, in_place=in_place, keep_gathered=keep_gathered, out=out, config=config,
    )  # fmt: skip
    return list(c.split([each.shape[1] for each in bs], dim=-1))


def _gather(
    operator: Operator, context: Context, operands: Operands, gather_dim: int, in_place: bool,
    out_dtype: torch.dtype | None, fast_accum: bool, epilogue: str, gate_up: str, outs: Results | None,
    config: Config | None, rows: Sequence[int] | None = None,
) -> Results:  # fmt: skip
    """All results of a call."""
    try:
        a: Any = operands[0]
        layout, folding, ragged = "rows", None, None
        if gather_dim != 0 or rows is not None or a.dim() != 2:
            dim = dimension("gather_dim", gather_dim, a)
            layout = "k" if dim == a.dim() - 1 else "rows"
            if rows is not None and is_ragged(rows, context.heap, a, dim, in_place):
                ragged, operands = rows, padded(operands, rows, dim)
                a = operands[0]
            folding = None if a.dim() == 2 else gathered(a, dim, context.heap.world_size)
        options = layout, in_place, word_of(out_dtype), fast_accum, epilogue, gate_up
        if ragged is None:
            return operator.all_of(context, operands, options, outs, config, folding)
        if outs is not None:
            demand_no_gradient((*operands, *outs))
        whole = operator.all_of(context, operands, options, None, config, folding)[0]
        return [unpadded(whole, ragged, dim, None if outs is None else outs[0])]
    except Exception as error:  # whatever it is: the other ranks wait
        operator.refuse(context, operands, outs, config, error)
        raise


def all_gather_shard(context: Context, problem: AllGatherGemm, *, config: Config | None = None) -> Tensor:
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
        shard = context.workspace(operator.workload, context.problem(problem), config, lambda made: made.shard)
        assert shard is not None
        return shard
    except Exception as error:  # whatever it is: the other ranks wait
        context.refuse(error)
        raise


def side_by_side(bs: Sequence[Tensor]) -> list[Tensor]:
    """Copy matrices [k, n] as columns of one, in new memory: what ``all_gather_gemm`` takes as a list.

    They are stored as the first one is, row by row or as its transpose. Raises InvalidProblem where they do not fit.
    """
    with torch.no_grad():
        whole = copied(bs)
    return list(whole.split([b.shape[1] for b in bs], dim=1))


def copied(bs: Sequence[Tensor]) -> Tensor:
    """Concatenate into one matrix; gradients go to each B. Raises InvalidProblem where they do not fit."""
    _check(bs)
    return torch.cat([b.t() for b in bs]).t() if order_of(bs[0]) == "nk" else torch.cat(list(bs), dim=1)


def whole_of(bs: Sequence[Tensor]) -> Tensor:
    """The matrix whose columns these are, one after the other. Raises InvalidProblem where there is none.

    Under ``torch.compile``, where nothing has an address, and where gradients are needed, which go to each B, they are
    copied into one.
    """
    if torch.compiler.is_compiling() or needs_gradient(bs):
        return copied(bs)
    _check(bs)
    if not lie_side_by_side(bs):
        raise InvalidProblem(
            "the Bs do not lie side by side in memory: call autotune.side_by_side once, where the weights are loaded, "
            "and pass what it returns"
        )
    first = bs[0]
    return first.as_strided((first.shape[0], sum(b.shape[1] for b in bs)), first.stride())


def lie_side_by_side(bs: Sequence[Tensor]) -> bool:
    """True if matrices are the columns of one, one after the other."""
    first, place, memory = bs[0], bs[0].data_ptr(), bs[0].untyped_storage().data_ptr()
    for b in bs:
        alike = b.stride() == first.stride() and b.is_neg() == first.is_neg()
        if not alike or b.data_ptr() != place or b.untyped_storage().data_ptr() != memory:
            return False
        place += b.shape[1] * b.stride(1) * b.element_size()
    return True


def _check(bs: Sequence[Tensor]) -> None:
    said = ", ".join(f"{list(b.shape)} {b.dtype} on {b.device}" for b in bs)
    first = bs[0] if bs else None
    if first is None or any(b.dim() != 2 for b in bs):
        raise InvalidProblem(f"Bs: {said or 'none'}; expected at least one matrix")
    if any((b.shape[0], b.dtype, b.device) != (first.shape[0], first.dtype, first.device) for b in bs):
        raise InvalidProblem(f"Bs: {said}; all need the same depth, type and device")
