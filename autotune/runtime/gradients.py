"""Gradients of the operators with a GEMM: each is a GEMM with the opposite collective, looked up as any other call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from autotune.config import Config
from autotune.kernels.launching.tensors import TORCH_DTYPES
from autotune.runtime.context import Context
from autotune.runtime.operator import OPERATORS, Operator
from autotune.runtime.workspace import Operands

Tensor = torch.Tensor
Options = Mapping[str, Any]

DTYPES = frozenset(TORCH_DTYPES.values())

DIFFERENTIABLE = ("a", "b", "bias")
"""Operands whose gradients there are, the first ones; a call with any other one has no backward."""

INDIFFERENT = ("layout", "deterministic", "out_dtype", "fast_accum")
"""Options that a backward knows, or that change nothing without fp8; a call with another one has no backward."""


class GemmBackward(ABC):
    """The gradients of C = A @ B (+ bias) by that of C."""

    collective = True

    def covers(self, operands: Mapping[str, Tensor | None], options: Collection[str]) -> bool:
        """Not fp8, nothing beside A, B and a bias, and no shard that changes under the backward."""
        plain = all(x is None or x.dtype in DTYPES for x in operands.values())
        others = [name for name, x in operands.items() if x is not None and name not in DIFFERENTIABLE]
        return plain and not others and all(name in INDIFFERENT for name in options)

    def autocast(self, operands: Operands, device: str) -> Operands:
        return autocast(operands, device)

    def save(self, operands: Operands, needs: Sequence[bool]) -> Operands:
        a, b = operands[:2]
        return a if needs[1] else None, b if needs[0] else None

    @abstractmethod
    def of_a(self, context: int, options: Options, b: Tensor, grad: Tensor) -> Tensor: ...

    @abstractmethod
    def of_b(self, context: int, options: Options, a: Tensor, grad: Tensor) -> Tensor: ...

    def of_bias(self, context: int, grad: Tensor) -> Tensor:
        return grad.sum(0)

    def all_of(self, context: int, options: Options, saved: Operands, grad: Tensor, needs: Sequence[bool]) -> Operands:
        """The gradients that are needed, on all ranks in this order."""
        a, b = saved
        grad = grad.contiguous()
        # A result wider than the operands has a gradient that is wider, too; the GEMMs take operands of one type.
        of_a = self.of_a(context, options, b, grad.to(b.dtype)) if b is not None else None
        of_b = self.of_b(context, options, a, grad.to(a.dtype)) if a is not None else None
        of_bias = self.of_bias(context, grad) if needs[2] else None
        return of_a, of_b, of_bias, *[None] * (len(needs) - len(DIFFERENTIABLE))


class OfAllGatherGemm(GemmBackward):
    """A's shard takes a GEMM and a reduce-scatter; B takes A once more, gathered anew."""

    def of_a(self, context: int, options: Options, b: Tensor, grad: Tensor) -> Tensor:
        if options["layout"] == "rows":
            return scattered(context, grad, b.t())
        return scattered(context, b.contiguous(), grad.t()).t()

    def of_b(self, context: int, options: Options, a: Tensor, grad: Tensor) -> Tensor:
        return gathered(context, turned(a), grad, "k" if options["layout"] == "rows" else "rows")


class OfGemmReduceScatter(GemmBackward):
    """Both matrices take the whole gradient, gathered on its way into the GEMM; the bias takes the sum of its rows."""

    def of_a(self, context: int, options: Options, b: Tensor, grad: Tensor) -> Tensor:
        return gathered(context, grad, b.t(), "rows")

    def of_b(self, context: int, options: Options, a: Tensor, grad: Tensor) -> Tensor:
        return gathered(context, turned(grad), a, "k").t()

    def of_bias(self, context: int, grad: Tensor) -> Tensor:
        return reduced(context, grad.new_ones(1, grad.shape[0]), grad)[0]


class OfGemmAllReduce(GemmBackward):
    """C is one matrix that every rank has, and so is its gradient: nothing is exchanged."""

    collective = False

    def of_a(self, context: int, options: Options, b: Tensor, grad: Tensor) -> Tensor:
        return grad @ b.t()

    def of_b(self, context: int, options: Options, a: Tensor, grad: Tensor) -> Tensor:
        return a.t() @ grad


def gathered(context: int, a: Tensor, b: Tensor, layout: str) -> Tensor:
    """all_gather(a) @ b, through torch's dispatcher, so that a tracer sees it."""
    return OPERATORS["all_gather_gemm"].dispatched(context, a, b, layout=layout)


def scattered(context: int, a: Tensor, b: Tensor) -> Tensor:
    """reduce_scatter(a @ b) likewise."""
    return OPERATORS["gemm_reduce_scatter"].dispatched(context, a, b)


def reduced(context: int, a: Tensor, b: Tensor) -> Tensor:
    """all_reduce(a @ b) likewise."""
    return OPERATORS["gemm_all_reduce"].dispatched(context, a, b)


def turned(matrix: Tensor) -> Tensor:
    """The transpose, row by row."""
    return matrix.t().contiguous()


def autocast(tensors: Operands, device: str) -> list[Tensor | None]:
    """The operands of a matmul as ``torch.autocast`` hands them over: nothing of fp64, nor beside fp8."""
    first = tensors[0]
    if first is None or first.dtype not in DTYPES or not torch.is_autocast_enabled(device):
        return list(tensors)
    dtype = torch.get_autocast_dtype(device)
    return [x if x is None or not x.is_floating_point() or x.dtype == torch.float64 else x.to(dtype) for x in tensors]


class _Kept(torch.autograd.Function):
    """all_gather(a) @ b (+ bias) that keeps the gathered A. The fused kernels hand out none, so the library gathers."""

    @staticmethod
    def forward(
        ctx: Any, context: int, group: tuple[str, int], layout: str, a: Tensor, b: Tensor, bias: Tensor | None
    ) -> Tensor:
        name, ranks = group
        collectives = torch.ops._c10d_functional
        whole = collectives.wait_tensor(collectives.all_gather_into_tensor(a, ranks, name))
        if layout == "k":
            whole = torch.cat(whole.chunk(ranks), dim=1)
        ctx.save_for_backward(whole, b)
        ctx.context, ctx.layout = context, layout
        return whole @ b if bias is None else torch.addmm(bias, whole, b)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        whole, b = ctx.saved_tensors
        needs = ctx.needs_input_grad[3:]
        grad = grad.contiguous()
        formulas = OfAllGatherGemm()
        of_a = formulas.of_a(ctx.context, {"layout": ctx.layout}, b, grad) if needs[0] else None
        of_b = whole.t() @ grad if needs[1] else None
        return None, None, None, of_a, of_b, formulas.of_bias(ctx.context, grad) if needs[2] else None


class Keeping:
    """All-gather + GEMM whose backward gathers no A."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    def __call__(
        self, context: Context, operands: Operands, options: tuple[Any, ...], out: Tensor | None, config: Config | None
    ) -> Tensor:  # fmt: skip
        """As the operator is called, which refuses what has no gradients. A result of another type keeps nothing."""
        a, b, bias, *_ = operands
        assert a is not None
        layout, _, out_dtype, *_ = options
        if out_dtype != "auto" or not self._operator.differentiable(operands, options, out):
            return self._operator(context, operands, options, out, config)
        cast = autocast((a.contiguous(), b, bias), a.device.type)
        group = (context.group_name, context.heap.world_size)
        made: Tensor = _Kept.apply(context.handle, group, layout, *cast)  # type: ignore[no-untyped-call]
        return made
