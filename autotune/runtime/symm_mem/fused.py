"""The four operators, each with torch's arguments in torch's order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from autotune.errors import InvalidProblem
from autotune.runtime import operators
from autotune.runtime.call import demand_no_gradient, dispatched, needs_gradient
from autotune.runtime.context import Context, contexts_of
from autotune.runtime.folding import dimension, gathered
from autotune.runtime.groups import process_group
from autotune.runtime.operators.gather import copied, lie_side_by_side, whole_of

_OPENED: list[Context] = []
"""The contexts that calls have opened."""


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def context_of(group: Any) -> Context:
    """The context of a group's calls: one that is open, else a new one of the default size. Collective then."""
    group = process_group(group)
    found = contexts_of(group)
    if not found:
        found = [Context(group=group)]
        _OPENED.append(found[0])
    return found[0]


def close() -> None:
    """Close the contexts that calls have opened. Collective."""
    while _OPENED:
        _OPENED.pop().close()


def fused_all_gather_matmul(
    A: torch.Tensor, Bs: Sequence[torch.Tensor], gather_dim: int, group_name: Any, *, return_A: bool = True
) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
    """``A`` gathered along ``gather_dim``, with ``return_A``, and its products with all ``Bs``. Collective.

    One B is ``all_gather_gemm``, and so are several that lie ``side_by_side``, whose products are then views of one
    result. So are others where a gradient is needed: they are copied side by side in each call. Otherwise the first B's
    kernel gathers A, and the library multiplies it with the others.
    """
    return gather_and_multiply(A, Bs, gather_dim, group_name, return_A=return_A, as_one=True)


def gather_and_multiply(
    A: torch.Tensor, Bs: Sequence[torch.Tensor], gather_dim: int, group_name: Any, *, return_A: bool = True,
    as_one: bool = False,
) -> tuple[torch.Tensor | None, list[torch.Tensor]]:  # fmt: skip
    """``fused_all_gather_matmul``; without ``as_one`` Bs are several wherever they lie, which may be elsewhere on
    another rank.
    """
    context: Context = context_of(group_name)
    try:
        dim = dimension("gather_dim", gather_dim, A)
        b = _as_one(A, Bs) if as_one or len(Bs) == 1 else None
        if b is not None:
            whole, product = _gather_gemm(context, A, b, dim, return_A)
            return whole, [product] if len(Bs) == 1 else list(product.split([each.shape[1] for each in Bs], -1))
        if not Bs:
            raise InvalidProblem("Bs is empty: give one B at least")
        if as_one and not (torch.compiler.is_compiling() or dispatched()):  # they may lie side by side on another rank
            context.agree_once("fused_all_gather_matmul", "apart", *A.shape, *(b.shape for b in Bs))
        whole, first = _gather_gemm(context, A, Bs[0], dim, True)
        assert whole is not None
        # The matrix of the whole A, without a copy: its rows are in the order of the dimension that was gathered.
        rows = whole.movedim(0 if dim == A.dim() - 1 else dim, 0).flatten(0, -2)
        unfolded = gathered(A, dim, context.heap.world_size).unfolded
        return whole if return_A else None, [first, *(unfolded(torch.matmul(rows, b)) for b in Bs[1:])]
    except Exception as error:  # whatever it is: the other ranks wait
        _tell(context, error)
        raise


def fused_all_gather_scaled_matmul(
    A: torch.Tensor, Bs: Sequence[torch.Tensor], A_scale: torch.Tensor, B_scales: Sequence[torch.Tensor],
    gather_dim: int, group_name: Any, biases: Sequence[torch.Tensor | None],
    result_scales: Sequence[torch.Tensor | None], out_dtypes: Sequence[torch.dtype | None],
    use_fast_accum: Sequence[bool], *, return_A: bool = True,
) -> tuple[torch.Tensor | None, list[torch.Tensor]]:  # fmt: skip
    """``fused_all_gather_matmul`` in fp8. ``A_scale`` is of all of A, of its rows here, or of the rows of all ranks.
    Collective.

    ``return_A=False``, which torch's operator lacks, saves the gathered A. Results have no scales, and are not fp8.
    """
    context: Context = context_of(group_name)
    try:
        lists = {"B_scales": B_scales, "biases": biases, "result_scales": result_scales, "out_dtypes": out_dtypes,
                 "use_fast_accum": use_fast_accum}  # fmt: skip
        for name, given in lists.items():
            if len(given) != len(Bs):
                raise InvalidProblem(f"{name} has {len(given)} elements; expected one for each of {len(Bs)} Bs")
        for result_scale, out_dtype in zip(result_scales, out_dtypes, strict=True):
            _check_result(result_scale, out_dtype)
        dim = dimension("gather_dim", gather_dim, A)
        ours = _own_scales(context, A, A_scale, dim)
        of_each = list(zip(Bs, B_scales, biases, out_dtypes, use_fast_accum, strict=True))
        if len(Bs) == 1:
            ((b, scale_b, bias, dtype, fast),) = of_each
            scale_a, scale_b = _like_each_other(ours, scale_b)
            whole, product = _gather_gemm(
                context, A, b, dim, return_A, bias=bias, scale_a=scale_a, scale_b=scale_b, out_dtype=dtype,
                fast_accum=fast,
            )  # fmt: skip
            return whole, [product]
        demand_no_gradient((A, *Bs, A_scale, *B_scales, *biases))
        folding = gathered(A, dim, context.heap.world_size)
        rows, scale_a = _all_gather(context, A, dim), ours
        if ours.dim() == A.dim():
            travelling = dim < A.dim() - 1
            scale_a = _all_gather(context, ours, dim) if travelling else folding.matrix(ours).contiguous()
        results = [
            torch._scaled_mm(rows, b, scale_a, scale_b, bias, out_dtype=dtype, use_fast_accum=fast)
            for b, scale_b, bias, dtype, fast in of_each
        ]
        return folding.unfolded(rows) if return_A else None, [folding.unfolded(result) for result in results]
    except Exception as error:  # whatever it is: the other ranks wait
        _tell(context, error)
        raise


def fused_matmul_reduce_scatter(
    A: torch.Tensor, B: torch.Tensor, reduce_op: str, scatter_dim: int, group_name: Any
) -> torch.Tensor:  # fmt: skip
    """This rank's part along ``scatter_dim`` of the ``sum`` or ``avg`` over ranks of ``A`` @ ``B``. Collective."""
    context: Context = context_of(group_name)
    return operators.gemm_reduce_scatter(context, A, B, scatter_dim=scatter_dim, reduce_op=reduce_op).contiguous()


def fused_scaled_matmul_reduce_scatter(
    A: torch.Tensor, B: torch.Tensor, A_scale: torch.Tensor, B_scale: torch.Tensor, reduce_op: str,
    orig_scatter_dim: int, scatter_dim_after_maybe_reshape: int, group_name: Any,
    output_shape: Sequence[int] | None, bias: torch.Tensor | None = None, result_scale: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None, use_fast_accum: bool = False,
) -> torch.Tensor:  # fmt: skip
    """``fused_matmul_reduce_scatter`` in fp8. ``output_shape``: the result's before it is scattered along
    ``orig_scatter_dim``, whose dimensions A's rows have. Collective.

    ``bias`` is the same on all ranks; each adds it to its part, as torch does. ``scatter_dim_after_maybe_reshape``
    follows from the others.
    """
    context: Context = context_of(group_name)
    try:
        _check_result(result_scale, out_dtype)
        leading = A.shape[:-1] if output_shape is None else output_shape[:-1]
        if A_scale.numel() > 1:
            if A_scale.shape[:-1] != A.shape[:-1]:
                raise InvalidProblem(
                    f"A_scale is {list(A_scale.shape)}, A {list(A.shape)}: it needs an element for each row"
                )
            A_scale = A_scale.reshape(*leading, 1)
        scale_a, scale_b = _like_each_other(A_scale, B_scale)
        if bias is not None and reduce_op == "sum":
            bias = bias * context.heap.world_size
        return operators.gemm_reduce_scatter(
            context, A.reshape(*leading, A.shape[-1]), B, bias, scale_a=scale_a, scale_b=scale_b, out_dtype=out_dtype,
            fast_accum=use_fast_accum, scatter_dim=orig_scatter_dim, reduce_op=reduce_op,
        ).contiguous()  # fmt: skip
    except Exception as error:  # whatever it is: the other ranks wait
        _tell(context, error)
        raise


def _tell(context: Context, error: Exception) -> None:
    """Tell the other ranks of an error, but not of a trace's, to which a context is unknown."""
    if not torch.compiler.is_compiling():
        context.refuse(error)


def _as_one(A: torch.Tensor, Bs: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The B of a call of the kernels; None for several, of which the library multiplies all but the first."""
    if len(Bs) == 1:
        return Bs[0]
    if len(Bs) > 1 and not torch.compiler.is_compiling() and not needs_gradient(Bs) and lie_side_by_side(Bs):
        return whole_of(Bs)
    return copied(Bs) if needs_gradient((A, *Bs)) else None


def _gather_gemm(
    context: Context, a: torch.Tensor, b: torch.Tensor, dim: int, return_a: bool, **options: Any
) -> tuple[torch.Tensor | None, torch.Tensor]:  # fmt: skip
    """The gathered A, with ``return_a``, and the product, by the kernels."""
    if not return_a:
        return None, operators.all_gather_gemm(context, a, b, gather_dim=dim, **options)
    product, whole = operators.all_gather_gemm_with_gathered(context, a, b, gather_dim=dim, **options)
    return whole, product


def _check_result(result_scale: torch.Tensor | None, out_dtype: torch.dtype | None) -> None:
    if result_scale is not None or out_dtype is None:
        raise InvalidProblem(
            f"out_dtype={out_dtype}, result_scale {'given' if result_scale is not None else None}: results are not fp8 "
            "here; pass out_dtype=torch.bfloat16, float16 or float32, and no result_scale"
        )


def _own_scales(context: Context, a: torch.Tensor, scale: torch.Tensor, dim: int) -> torch.Tensor:
    """The scales of this rank's rows, or of all of A. Raises InvalidProblem where they fit neither A nor its shard."""
    whole = list(a.shape[:-1])
    if dim < a.dim() - 1:
        whole[dim] *= context.heap.world_size
    if scale.shape == (*a.shape[:-1], 1) or scale.numel() == 1:
        return scale
    if scale.shape == (*whole, 1):
        return scale.chunk(context.heap.world_size, dim)[context.heap.rank].contiguous()
    raise InvalidProblem(
        f"A_scale is {list(scale.shape)}; with A {list(a.shape)} allowed: one element, {[*a.shape[:-1], 1]}, "
        f"{[*whole, 1]}"
    )


def _like_each_other(scale_a: torch.Tensor, scale_b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales of tensors as our operators take them, whatever dimensions they have; others as they are."""
    if scale_a.numel() == scale_b.numel() == 1:
        return scale_a.reshape(1), scale_b.reshape(1)
    return scale_a, scale_b


def _all_gather(context: Context, shard: torch.Tensor, dim: int) -> torch.Tensor:
    """The library's all-gather of bytes along any dimension: the whole as a matrix, see ``gathered``."""
    world = context.heap.world_size
    rows = gathered(shard, dim, world).matrix(shard).contiguous()
    if rows.shape[0] == 0:
        return rows if dim < shard.dim() - 1 else rows.new_empty((0, rows.shape[1] * world))
    collectives = torch.ops._c10d_functional
    whole: torch.Tensor = collectives.wait_tensor(
        collectives.all_gather_into_tensor(rows.view(torch.uint8), world, context.group_name)
    ).view(shard.dtype)
    return torch.cat(whole.chunk(world), -1) if dim == shard.dim() - 1 else whole
