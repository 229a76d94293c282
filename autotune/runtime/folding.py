"""Tensors of any number of dimensions, and shards of unequal length, as the matrices that kernels take.

All rows of A are one dimension of a GEMM. Where ranks share rows out, the dimension that they share comes first, so
that each rank's rows lie together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from autotune.errors import InvalidProblem
from autotune.heap.arena import SymmetricHeap
from autotune.runtime.workspace import Operands
from autotune.sizes import round_up

LARGEST_STEP = 128
"""Rows of unequal shards are rounded up to a power of two, from here on to a multiple of this: few problems, each with
a workspace and a tuned config, serve all of them.
"""


@dataclass(frozen=True)
class Folding:
    """A tensor [..., columns] as a matrix: ``dim`` moved to the front, then all dimensions but the last flattened."""

    dim: int
    shape: tuple[int, ...]
    """The dimensions of a result but the last, in the caller's order."""

    def operands(self, operands: Operands) -> Operands:
        """A, B, bias, scales and maybe a residual as matrices. Raises InvalidProblem."""
        a, b, bias, scale_a, scale_b, *residual = operands
        assert a is not None
        scale_a = unlisted(a, scale_a)
        if scale_a is not None and scale_a.dim() == a.dim():
            scale_a = self.matrix(scale_a)
        return self.matrix(a), b, bias, scale_a, scale_b, *(self.residual(each) for each in residual)

    def matrix(self, tensor: torch.Tensor) -> torch.Tensor:
        """The rows of a tensor in the order of ``dim``: a view where its strides allow one, else a copy."""
        return tensor.movedim(self.dim, 0).flatten(0, -2)

    def unfolded(self, result: torch.Tensor) -> torch.Tensor:
        """A result's matrix in the caller's dimensions. A view: contiguous once ``dim`` is moved to the front."""
        unfolded: torch.Tensor = result.unflatten(0, self._moved)
        return unfolded.movedim(0, self.dim)

    def place(self, out: torch.Tensor) -> torch.Tensor:
        """The matrix in the memory of ``out``. Raises InvalidProblem where there is none."""
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


def unlisted(a: torch.Tensor, scale_a: torch.Tensor | None) -> torch.Tensor | None:
    """Scales that list A's rows in their order, which may become another one, in A's dimensions; others as they are."""
    if scale_a is not None and scale_a.dim() == 2 and len(scale_a) == math.prod(a.shape[:-1]):
        scale_a = scale_a.unflatten(0, a.shape[:-1])
    return scale_a


def capacity(rows: Sequence[int]) -> int:
    """The rows of each shard that serve all of these."""
    most = max(rows)
    return min(round_up(most), -(-most // LARGEST_STEP) * LARGEST_STEP)


def is_ragged(rows: Sequence[int], heap: SymmetricHeap, a: torch.Tensor, dim: int, in_place: bool) -> bool:
    """True if shards with these rows along ``dim``, ``a`` being ours, need padding. Raises InvalidProblem."""
    if len(rows) != heap.world_size or min(rows) < 0 or a.shape[dim] != rows[heap.rank] or dim == a.dim() - 1:
        raise InvalidProblem(
            f"rows={list(rows)}, a {list(a.shape)} on rank {heap.rank}: a number for each of {heap.world_size} ranks "
            f"is needed, ours being the size of a in gather_dim={dim}, which must not be the last dimension"
        )
    if in_place:
        raise InvalidProblem("rows with in_place: shards of unequal length are copied")
    return set(rows) != {capacity(rows)}


def padded(operands: Operands, rows: Sequence[int], dim: int) -> Operands:
    """The operands with A's shard, and its scales, as long as ``rows`` of every rank need."""
    a, b, bias, scale_a, scale_b = operands
    assert a is not None
    length, scale_a = capacity(rows), unlisted(a, scale_a)
    if scale_a is not None and scale_a.dim() == a.dim():
        scale_a = _padded(scale_a, dim, length)
    return _padded(a, dim, length), b, bias, scale_a, scale_b


def unpadded(whole: torch.Tensor, rows: Sequence[int], dim: int, out: torch.Tensor | None) -> torch.Tensor:
    """A copy of the result of ``padded`` operands without the padding: rank by rank, each with its ``rows``. Raises
    InvalidProblem.
    """
    shape, length = [*whole.shape], whole.shape[dim] // len(rows)
    shape[dim] = sum(rows)
    if out is not None and (list(out.shape) != shape or out.dtype != whole.dtype):
        raise InvalidProblem(f"out is {list(out.shape)} {out.dtype}; {shape} {whole.dtype} expected")
    parts = [whole.narrow(dim, owner * length, count) for owner, count in enumerate(rows)]
    return torch.cat(parts, dim) if out is None else torch.cat(parts, dim, out=out)


def _padded(shard: torch.Tensor, dim: int, length: int) -> torch.Tensor:
    """A shard of that length, filled up with zeros. Each row of a product is by itself, but B's gradient is a sum over
    rows, in which nothing times what memory held before may be no number.
    """
    count = shard.shape[dim]
    if count == length:
        return shard
    shape = [*shard.shape]
    shape[dim] = length
    longer = shard.new_empty(shape)
    longer.narrow(dim, 0, count).copy_(shard)
    longer.narrow(dim, count, length - count).zero_()
    return longer
