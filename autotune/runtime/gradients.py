"""Gradients of the operators with a GEMM: each is a GEMM with the opposite collective, looked up as any other call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from autotune.kernels.launching.tensors import TORCH_DTYPES
from autotune.runtime.call import OPERATORS, needs_gradient
from autotune.runtime.context import Context, open_context
from autotune.runtime.workspace import Operands, Results

Tensor = torch.Tensor
Matrices = tuple[Tensor | None, Tensor | None]

DTYPES = frozenset(TORCH_DTYPES.values())

DIFFERENTIABLE = ("a", "b", "bias")
"""Operands whose gradients there are, the first ones; a call with any other one has no backward."""

INDIFFERENT = ("layout", "deterministic", "out_dtype", "fast_accum")
"""Options that a backward knows, or that change nothing without fp8; a call with another one has no backward."""


@dataclass(frozen=True)
class Forward:
    """An operator's call as its backward sees it; ``needs`` and ``strides`` are those of the operands, in order."""

    handle: int
    options: Mapping[str, Any]
    saved: Operands
    """The tensors of ``GemmBackward.save``."""
    needs: Sequence[bool]
    strides: Sequence[tuple[int, ...] | None]


class GemmBackward(ABC):
    """The gradients of C = A @ B (+ bias) by that of C."""

    collective = True
    """True if all ranks have to ask for the same gradients."""

    def covers(self, operands: Mapping[str, Tensor | None], options: Collection[str]) -> bool:
        """Not fp8, nothing beside A, B and a bias, and no shard that changes under the backward."""
        plain = all(x is None or x.dtype in DTYPES for x in operands.values())
        others = [name for name, x in operands.items() if x is not None and name not in DIFFERENTIABLE]
        return plain and not others and all(name in INDIFFERENT for name in options)

    def save(self, operands: Operands, results: Results, needs: Sequence[bool]) -> Operands:
        """A for B's gradient, and B for A's."""
        a, b = operands[:2]
        return a if needs[1] else None, b if needs[0] else None

    def all_of(self, call: Forward, grad: Tensor, *others: Tensor | None) -> Operands:
        """The gradients that are needed, on all ranks in this order."""
        grad = grad.contiguous()
        saved = next((x for x in call.saved if x is not None), grad)
        # A result wider than the operands has a gradient that is wider, too; the GEMMs take operands of one type.
        of_a, of_b = self.of_matrices(call, grad.to(saved.dtype), *others)
        of_bias = self.of_bias(call, grad) if call.needs[2] else None
        return of_a, of_b, of_bias, *[None] * (len(call.needs) - len(DIFFERENTIABLE))

    @abstractmethod
    def of_matrices(self, call: Forward, grad: Tensor, *others: Tensor | None) -> Matrices:
        """The gradients of A and B by those of the results, where ``call.saved`` has the matrix that each takes."""

    def of_bias(self, call: Forward, grad: Tensor) -> Tensor:
        return grad.sum(0)


class OfAllGatherGemm(GemmBackward):
    """A's shard takes a GEMM and a reduce-scatter; B takes A once more, gathered anew."""

    def of_matrices(self, call: Forward, grad: Tensor, *others: Tensor | None) -> Matrices:
        a, b = call.saved
        of_a = None if b is None else of_shard(call, b, grad)
        if a is None:
            return of_a, None
        layout = "k" if call.options["layout"] == "rows" else "rows"
        return of_a, called("all_gather_gemm", call.handle, a.t().contiguous(), grad, layout=layout)


class OfGathering(GemmBackward):
    """Gradients where the gathered A is kept: B's gradient gathers nothing.

    Where it is ``returned``, what a rank computes from it has a gradient, which is added to C's before the sum over
    ranks. It may exist on some ranks alone: so all exchange the same with it and without. Where it is not, it has one
    in a backward of second order alone: only B's gradient is computed from it.
    """

    def __init__(self, *, returned: bool) -> None:
        self._returned = returned

    def save(self, operands: Operands, results: Results, needs: Sequence[bool]) -> Operands:
        """The whole A in the place of its shard."""
        return super().save((results[1], *operands[1:]), results, needs)

    def of_matrices(self, call: Forward, grad: Tensor, *others: Tensor | None) -> Matrices:
        (whole, b), (of_whole,) = call.saved, others
        of_b = None if whole is None else stored_as(call.strides[1], whole.t(), grad)
        if b is None:
            return None, of_b
        both = self._returned or of_whole is not None
        return of_both(call, b, grad, of_whole) if both else of_shard(call, b, grad), of_b


class OfGemmReduceScatter(GemmBackward):
    """Both matrices take the whole gradient, gathered on its way into the GEMM; the bias takes the sum of its rows."""

    def of_matrices(self, call: Forward, grad: Tensor, *others: Tensor | None) -> Matrices:
        a, b = call.saved
        if a is None or b is None:
            return (
                None if b is None else called("all_gather_gemm", call.handle, grad, b.t()),
                None if a is None else called("all_gather_gemm", call.handle, grad.t().contiguous(), a, layout="k").t(),
            )
        of_a, whole = OPERATORS["all_gather_gemm_gathered"].dispatched(call.handle, grad, b.t())
        return of_a, stored_as(call.strides[1], a.t(), whole)

    def of_bias(self, call: Forward, grad: Tensor) -> Tensor:
        return called("gemm_all_reduce", call.handle, grad.new_ones(1, grad.shape[0]), grad)[0]


class OfGemmAllReduce(GemmBackward):
    """C is one matrix that every rank has, and so is its gradient: nothing is exchanged."""

    collective = False

    def of_matrices(self, call: Forward, grad: Tensor, *others: Tensor | None) -> Matrices:
        a, b = call.saved
        grad = taken_by_all(open_context(call.handle).group_name, grad)
        of_b = None if a is None else stored_as(call.strides[1], a.t(), grad)
        return None if b is None else grad @ b.t(), of_b


def of_shard(call: Forward, b: Tensor, grad: Tensor) -> Tensor:
    """The gradient of A's shard: reduce_scatter(C's @ B')."""
    if call.options["layout"] == "rows":
        return called("gemm_reduce_scatter", call.handle, grad, b.t())
    return called("gemm_reduce_scatter", call.handle, b.contiguous(), grad.t()).t()


def of_both(call: Forward, b: Tensor, grad: Tensor, of_whole: Tensor | None) -> Tensor:
    """A's gradient plus what the gathered A's adds, if there is one; by a GEMM and the library."""
    total = grad @ b.t() if of_whole is None else torch.addmm(of_whole, grad, b.t())
    if call.options["layout"] == "rows":
        return reduce_scattered(call.handle, total)
    return reduce_scattered(call.handle, total.t().contiguous()).t()


def stored_as(strides: tuple[int, ...] | None, left: Tensor, right: Tensor) -> Tensor:
    """Left @ right, by its transpose where the matrix of these strides is one: autograd copies a gradient that does not
    lie as its parameter does.
    """
    if strides is not None and strides[0] == 1 != strides[1]:
        return (right.t() @ left.t()).t()
    return left @ right


def called(name: str, context: int, a: Tensor, b: Tensor, **options: Any) -> Tensor:
    """The result of an operator, called through torch's dispatcher, so that a tracer sees it."""
    made: Tensor = OPERATORS[name].dispatched(context, a, b, **options)
    return made


def reduce_scattered(context: int, parts: Tensor) -> Tensor:
    """This rank's rows of the sum of all ranks' ``parts``, by the library. In a backward that has one itself, too."""
    opened = open_context(context)
    return _exchanged("rows", opened.group_name, opened.heap.world_size, opened.heap.rank, parts)


def taken_by_all(group: str, tensor: Tensor) -> Tensor:
    """A tensor that all ranks have, where each computes its own part from it: its gradient is the sum of theirs. In a
    backward this is one of second order.
    """
    return _exchanged("whole", group, 0, 0, tensor) if needs_gradient((tensor,)) else tensor


def for_own_rows(context: Context, bias: Tensor | None) -> Tensor | None:
    """A bias that all ranks have, each for its own rows; its gradient is that of all rows, on every rank."""
    if bias is None or not needs_gradient((bias,)):
        return bias
    if not torch.compiler.is_compiling():
        context.agree_once("gemm_reduce_scatter", "avg, with a gradient of the bias", *bias.shape)
    return taken_by_all(context.group_name, bias)


def own_part(context: Context, vector: Tensor | None) -> Tensor | None:
    """This rank's part of a vector that all ranks have; its gradient is that of all parts, on every rank."""
    if vector is None:
        return None
    ranks, rank = context.heap.world_size, context.heap.rank
    if not needs_gradient((vector,)):
        return vector.chunk(ranks)[rank]
    if not torch.compiler.is_compiling():
        context.agree_once("gemm_reduce_scatter", "by columns, with a gradient of the bias", *vector.shape)
    return _exchanged("part", context.group_name, ranks, rank, vector)


def _collective(name: str, group: str, ranks: int, rank: int, tensor: Tensor) -> Tensor:
    """An exchange by its name, or what leads its gradient back, by the name behind ``back of``."""
    collectives = torch.ops._c10d_functional
    if name == "whole":
        return tensor.view_as(tensor)
    if name == "part":
        return tensor.chunk(ranks)[rank].clone()
    tensor = tensor.contiguous()
    if name == "rows":
        started = collectives.reduce_scatter_tensor(tensor, "sum", ranks, group)
    elif name == "back of whole":
        started = collectives.all_reduce(tensor, "sum", group)
    else:
        started = collectives.all_gather_into_tensor(tensor, ranks, group)
    made: Tensor = collectives.wait_tensor(started)
    return made


def _exchanged(name: str, group: str, ranks: int, rank: int, tensor: Tensor) -> Tensor:
    if not needs_gradient((tensor,)):
        return _collective(name, group, ranks, rank, tensor)
    made: Tensor = _Exchange.apply(name, group, ranks, rank, tensor)  # type: ignore[no-untyped-call]
    return made


class _Exchange(torch.autograd.Function):
    """A collective whose gradient takes the reverse one, whose own gradient takes the first."""

    @staticmethod
    def forward(ctx: Any, name: str, group: str, ranks: int, rank: int, tensor: Tensor) -> Tensor:
        ctx.name, ctx.place = name, (group, ranks, rank)
        return _collective(name, group, ranks, rank, tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        reverse = ctx.name.removeprefix("back of ") if ctx.name.startswith("back of ") else f"back of {ctx.name}"
        group, ranks, rank = ctx.place
        return None, None, None, None, _exchanged(reverse, group, ranks, rank, grad)


def autocast(tensors: Operands, device: str) -> list[Tensor | None]:
    """The operands of a matmul as ``torch.autocast`` hands them over: nothing of fp64, nor beside fp8."""
    first = tensors[0]
    if first is None or first.dtype not in DTYPES or not torch.is_autocast_enabled(device):
        return list(tensors)
    dtype = torch.get_autocast_dtype(device)
    return [x if x is None or not x.is_floating_point() or x.dtype == torch.float64 else x.to(dtype) for x in tensors]
