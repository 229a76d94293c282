"""Tensors of any number of dimensions as the matrices that kernels take, and matrices as such results.

All rows of A are one dimension of a GEMM. Where ranks share rows out, the dimension that they share comes first, so
that each rank's rows lie together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from autotune.config import Config
from autotune.errors import InvalidProblem
from autotune.kernels.launching.gemm import order_of
from autotune.runtime.call import demand_no_gradient
from autotune.runtime.context import Context
from autotune.runtime.gradients import autocast, own_part
from autotune.runtime.operator import Operator
from autotune.runtime.workspace import Operands

REDUCTIONS = ("sum", "avg")

Call = Callable[[Context, Operands, tuple[Any, ...], torch.Tensor | None, Config | None], torch.Tensor]
"""An operator, or what takes its place."""


@dataclass(frozen=True)
class Folding:
    """A tensor [..., columns] as a matrix: ``dim`` moved to the front, then all dimensions but the last flattened."""

    dim: int
    shape: tuple[int, ...]
    """The dimensions of a result but the last, in the caller's order."""

    def matrix(self, tensor: torch.Tensor) -> torch.Tensor:
        """The rows of a tensor in the order of ``dim``: a view where its strides allow one, else a copy."""
        return tensor.movedim(self.dim, 0).flatten(0, -2)

    def unfolded(self, result: torch.Tensor) -> torch.Tensor:
        """A result's matrix in the caller's dimensions. A view: contiguous once ``dim`` is moved to the front."""
        unfolded: torch.Tensor = result.unflatten(0, self._moved)
        return unfolded.movedim(0, self.dim)

    def place(self, out: torch.Tensor | None) -> torch.Tensor | None:
        """The matrix in the memory of a given ``out``. Raises InvalidProblem where there is none."""
        if out is None:
            return None
        moved = out.movedim(self.dim, 0) if out.dim() == len(self.shape) + 1 else out
        if moved.shape[:-1] != self._moved or not moved.is_contiguous():
            raise InvalidProblem(
                f"out is {list(out.shape)}, strides {out.stride()}; {[*self.shape, 'columns']} expected, contiguous "
                f"once dimension {self.dim} is the first"
            )
        return moved.view(-1, moved.shape[-1])

    def residual(self, tensor: torch.Tensor | None) -> torch.Tensor | None:
        """A residual's matrix, in order; copied where ``dim`` is not its first dimension. Raises InvalidProblem."""
        if tensor is None:
            return None
        if tuple(tensor.shape[:-1]) != self.shape:
            raise InvalidProblem(f"residual is {list(tensor.shape)}; {[*self.shape, 'columns']} expected")
        return self.matrix(tensor).contiguous()

    @property
    def _moved(self) -> tuple[int, ...]:
        rest = list(self.shape)
        return (rest.pop(self.dim), *rest)


def by_rows(a: torch.Tensor) -> Folding:
    """The folding of ``a`` whose result has as many rows. Raises InvalidProblem."""
    if a.dim() < 2:
        raise InvalidProblem(f"a is {list(a.shape)}; it must have two dimensions or more")
    return Folding(0, tuple(a.shape[:-1]))


def dimension(name: str, dim: int, a: torch.Tensor) -> int:
    """A dimension of ``a``, counted from the front. Raises InvalidProblem."""
    if a.dim() < 2 or not -a.dim() <= dim < a.dim():
        raise InvalidProblem(
            f"{name}={dim}, a {list(a.shape)}: a has two dimensions or more, and {name} is one of them"
        )
    return dim % a.dim()


def gathered(a: torch.Tensor, dim: int, world_size: int) -> Folding:
    """The folding of ``a`` whose result is ``world_size`` times as long in ``dim``; the last dimension is K."""
    shape = list(a.shape[:-1])
    if dim == a.dim() - 1:
        return Folding(0, tuple(shape))
    shape[dim] *= world_size
    return Folding(dim, tuple(shape))


def scattered(a: torch.Tensor, dim: int, world_size: int) -> Folding:
    """The folding of ``a`` whose result is a rank's part of ``dim``. Raises InvalidProblem if parts are not equal."""
    shape = list(a.shape[:-1])
    if shape[dim] % world_size:
        raise InvalidProblem(
            f"scatter_dim={dim}: {world_size} ranks do not divide its {shape[dim]} elements, a {list(a.shape)}"
        )
    shape[dim] //= world_size
    return Folding(dim, tuple(shape))


def folded(
    operator: Call, context: Context, folding: Folding, operands: Operands, options: tuple[Any, ...],
    out: torch.Tensor | None, config: Config | None,
) -> torch.Tensor:  # fmt: skip
    """A call whose first operand, its scales and result have the dimensions of ``folding``."""
    a, b, bias, scale_a, scale_b, *residual = operands
    assert a is not None
    scale_a = unlisted(a, scale_a)
    if scale_a is not None and scale_a.dim() == a.dim():
        scale_a = folding.matrix(scale_a)
    matrices = folding.matrix(a), b, bias, scale_a, scale_b, *(folding.residual(each) for each in residual)
    result = operator(context, matrices, options, folding.place(out), config)
    return folding.unfolded(result) if out is None else out


def unlisted(a: torch.Tensor, scale_a: torch.Tensor | None) -> torch.Tensor | None:
    """Scales that list A's rows in their order, which may become another one, in A's dimensions; others as they are."""
    if scale_a is not None and scale_a.dim() == 2 and len(scale_a) == math.prod(a.shape[:-1]):
        scale_a = scale_a.unflatten(0, a.shape[:-1])
    return scale_a


def folded_with_a(
    operator: Operator, context: Context, folding: Folding, operands: Operands, options: tuple[Any, ...],
    out: torch.Tensor | None, config: Config | None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """``folded`` for the operator whose second result is the gathered A, in the dimensions of C."""
    made: list[torch.Tensor] = []

    def both(
        context: Context, operands: Operands, options: tuple[Any, ...], out: torch.Tensor | None, config: Config | None
    ) -> torch.Tensor:
        a, b = operands[:2]
        assert a is not None and b is not None
        outs = None
        if out is not None:
            outs = out, a.new_empty((out.shape[0], b.shape[0]))
        c, whole = operator.all_of(context, operands, options, outs, config)
        made[:] = [whole]
        return c

    c = folded(both, context, folding, operands, options, out, config)
    return c, folding.unfolded(made[0])


def columns_scattered(
    operator: Operator, context: Context, operands: Operands, options: tuple[Any, ...], parts: int,
    out: torch.Tensor | None, config: Config | None,
) -> torch.Tensor:  # fmt: skip
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
        empty = operator(context, (rows, b, None, scale_a, scale_b, None), options, None, config).reshape(shape)
        return completed(empty, parts, own_part(context, bias), residual) if out is None else out
    if scale_a is not None and scale_b is not None:
        scale_a, scale_b = _exchanged(a, b, scale_a, scale_b)
        rows = rows if order_of(rows.t()) == "nk" else rows.contiguous()  # as a B of fp8 lies
    if residual is not None and (residual.shape != shape or residual.device != a.device):
        raise InvalidProblem(f"residual is {list(residual.shape)} on {residual.device}; {list(shape)} expected")
    swapped = b.t(), rows.t(), None, scale_a, scale_b, None
    if out is not None:
        (dtype,) = operator.workload.out_dtypes(swapped, options)
        if (out.dtype, out.device) != (dtype, a.device):  # a copy into it would convert in silence
            raise InvalidProblem(f"out is {out.dtype} on {out.device}; {dtype} on {a.device} expected")
    transposed = None if out is None else out.movedim(-1, 0)
    place = None
    if transposed is not None and transposed.is_contiguous() and residual is None:  # which may be ``out`` itself
        place = transposed.view(shape[-1], -1)
    result = operator(context, swapped, options, place, config).view(shape[-1], *shape[:-1]).movedim(0, -1)
    result = completed(result, parts, own_part(context, bias), residual)
    return result if out is None else out if place is not None else out.copy_(result)


def _exchanged(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scales of B' and A'. Raises InvalidProblem where these are no operands."""
    if scale_a.dim() == a.dim():
        scale_a = scale_a.flatten(0, -2)
    if scale_a.numel() > 1 and scale_a.shape[-1] != 1 or a.dtype != b.dtype:
        raise InvalidProblem(
            "the columns of C are scattered, for which A and B change places: they must be of one type, with scales by "
            f"tensors or rows; a is {a.dtype}, b {b.dtype}, scale_a {list(scale_a.shape)}"
        )
    return scale_b.t().contiguous(), scale_a.t().contiguous()


def divisor(reduce_op: str, world_size: int) -> int:
    """The number by which a reduction divides the sum. Raises InvalidProblem for one that there is not."""
    if reduce_op not in REDUCTIONS:
        raise InvalidProblem(f"reduce_op={reduce_op!r}: allowed: {', '.join(REDUCTIONS)}")
    return world_size if reduce_op == "avg" else 1


def averaged(
    operator: Operator, context: Context, folding: Folding, operands: Operands, options: tuple[Any, ...], parts: int,
    out: torch.Tensor | None, config: Config | None,
) -> torch.Tensor:  # fmt: skip
    """``folded`` for a sum over ranks that is divided by ``parts``. Bias and residual are added afterwards: fp16 may
    have no room for so many times their values.
    """
    a, b, bias, scale_a, scale_b, residual = operands
    if out is not None:
        demand_no_gradient((*operands, out))
        residual = None if residual is None else residual.clone()  # it may be ``out`` itself
    total = folded(operator, context, folding, (a, b, None, scale_a, scale_b, None), options, out, config)
    return completed(total, parts, bias, residual)


def completed(
    total: torch.Tensor, parts: int, bias: torch.Tensor | None, residual: torch.Tensor | None
) -> torch.Tensor:  # fmt: skip
    """A rank's ``total / parts (+ bias) (+ residual)``, in place. Raises InvalidProblem where they do not fit."""
    if parts > 1:
        total.div_(parts)
    _, bias, residual = autocast((total, bias, residual), total.device.type)
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
