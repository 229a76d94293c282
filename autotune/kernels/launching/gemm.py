"""Shared by launchers with a GEMM: its operands, and memory of programs that share a tile."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import torch

from autotune.kernels.gemm.problem import GemmProblem, SummedProblem, scale_shapes
from autotune.kernels.launching.tensors import OPERAND_DTYPES, TORCH_DTYPES, Allocate
from autotune.task import Task


@dataclass(frozen=True)
class GemmTensors:
    """One rank's operands: ``a`` contiguous, ``b`` in either storage order, ``c`` the output, ``bias`` maybe; of fp8
    the scales, see ``scale_shapes``, ``b``'s stored as ``b`` is.
    """

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    bias: torch.Tensor | None = None
    scale_a: torch.Tensor | None = None
    scale_b: torch.Tensor | None = None

    @classmethod
    def allocate(
        cls, problem: GemmProblem, a: torch.Tensor, b_shape: tuple[int, int], c_shape: tuple[int, int],
        allocate: Allocate,
    ) -> GemmTensors:  # fmt: skip
        """Everything beside ``a``, with undefined contents; B's shape is [depth, columns]."""
        result = TORCH_DTYPES[problem.result_dtype]
        scale_a = scale_b = None
        if problem.scaled:
            shapes = scale_shapes(problem.scales, (a.shape[0], a.shape[1]), b_shape)
            scale_a, scale_b = allocate(shapes[0], torch.float32), _stored("nk", shapes[1], torch.float32, allocate)
        return cls(
            a=a,
            b=_stored(problem.b_order, b_shape, OPERAND_DTYPES[problem.b_dtype], allocate),
            c=allocate(c_shape, result),
            bias=allocate((b_shape[1],), result) if problem.bias else None,
            scale_a=scale_a,
            scale_b=scale_b,
        )


@dataclass(frozen=True)
class SummedTensors(GemmTensors):
    """Tensors of a GEMM whose sum over ranks may go onto a residual, of the shape and type of ``c``."""

    residual: torch.Tensor | None = None

    @classmethod
    def of(cls, problem: SummedProblem, allocate: Allocate) -> SummedTensors:
        """All of them, with undefined contents."""
        a = allocate((problem.m, problem.k_local), OPERAND_DTYPES[problem.dtype])
        shape = problem.rows, problem.n
        gemm = GemmTensors.allocate(problem, a, (problem.k_local, problem.n), shape, allocate)
        return cls(**vars(gemm), residual=allocate(shape, gemm.c.dtype) if problem.residual else None)


@dataclass(frozen=True)
class Splits:
    """Memory of programs that share a tile's depth, this rank's alone, see ``join_splits``; empty if none do."""

    partials: torch.Tensor
    """fp32 [tiles * splits, block_m, block_n]"""
    tickets: torch.Tensor
    """int32 [tiles]: programs that have joined each"""

    @classmethod
    def of(cls, tile: Any, rows: int, columns: int, own: Allocate) -> Self:
        """``tile``: a ``GemmTile``."""
        tiles = tile.tiles(rows, columns) if tile.split_k > 1 else 0
        partials = own((tiles * tile.split_k, tile.block_m, tile.block_n), torch.float32)
        return cls(partials, own((tiles,), torch.int32))


def _stored(order: str, shape: tuple[int, ...], dtype: torch.dtype, allocate: Allocate) -> torch.Tensor:
    """A tensor of this shape; ``nk``: the transpose of what is stored."""
    return allocate(shape[::-1], dtype).t() if order == "nk" else allocate(shape, dtype)


def wire_dtype(task: Task[GemmProblem]) -> torch.dtype:
    """The type of parts on their way to those who sum them; fp8 is that of the machine's matrix units."""
    if task.problem.wire == "auto":
        return TORCH_DTYPES[task.problem.result_dtype]
    return OPERAND_DTYPES["fp8_fnuz" if task.machine.arch == "gfx942" else "fp8"]


ROW_ALIGNMENT = 16
"""Bytes: rows that lie apart begin at multiples of this, as descriptors need."""


def halves_constant(halves: bool, columns: int) -> int:
    """The kernels' HALVES, see ``primitives/gated.py``."""
    return math.gcd(columns // 2, 16) if halves else 0


def order_of(b: torch.Tensor) -> str:
    """The problem's word for the storage of B, by the strides."""
    return "nk" if not b.is_contiguous() and b.stride(0) < b.stride(1) else "kn"


def readable(name: str, operand: torch.Tensor, *, apart: tuple[str, ...] = ("b",)) -> torch.Tensor:
    """A or B as a GEMM reads it: contiguous, B maybe its transpose; of those named in ``apart`` rows may also lie
    apart, as in a slice of a matrix. Any other is copied. The bias is contiguous.
    """
    if name == "bias":
        return operand.contiguous()
    if name not in ("a", "b"):
        return operand
    transposed = name == "b" and order_of(operand) == "nk"
    rows = operand.t() if transposed else operand
    if rows.is_contiguous() or (name in apart and _rows_lie_apart(rows)):
        return operand
    rows = rows.contiguous()
    return rows.t() if transposed else rows


def _rows_lie_apart(matrix: torch.Tensor) -> bool:
    pitch, within = matrix.stride()
    return within == 1 and pitch >= matrix.shape[1] and pitch * matrix.element_size() % ROW_ALIGNMENT == 0
