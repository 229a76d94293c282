"""The library's GEMM: torch.matmul, and of fp8 torch._scaled_mm."""

from __future__ import annotations

import functools

import torch

from autotune.dtypes import SCALE_BLOCK
from autotune.kernels.gemm.problem import GemmProblem
from autotune.kernels.gemm.tile import GemmTile
from autotune.kernels.launching.gemm import GemmTensors, readable
from autotune.kernels.launching.knobs import Knobs
from autotune.problem import Problem

BLOCK_ROWS = 4
"""Rows of an A with scales by blocks are a multiple of this in the library's GEMM."""

OF_A_LIBRARY = 3.0
"""Roundings that a library's GEMM may have beside the result's: it may split K and add up in the result's type."""


def ring(world_size: int) -> float:
    """Roundings of a library's GEMM and then its reduction, which may round all parts and each sum of them, hop by hop.

    A part has 1 / world_size of the result's variance, the sum of j parts j times that.
    """
    return 1 + (world_size + 1) / 2 + OF_A_LIBRARY


def multiply(
    problem: GemmProblem, a: torch.Tensor, scale_a: torch.Tensor | None, tensors: GemmTensors, out: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """Out = a @ B (+ bias), of fp8 each times its scales."""
    if scale_a is not None:
        _multiply_scaled(problem, a, scale_a, tensors, out, bias)
    elif out.dtype != a.dtype:
        _multiply_wide(a, tensors.b, out, bias)
    elif bias is None:
        torch.mm(a, tensors.b, out=out)
    else:
        torch.addmm(bias, a, tensors.b, out=out)


def scales_of_rows(problem: GemmProblem, scale_a: torch.Tensor | None, rows: slice) -> torch.Tensor | None:
    """The scales of some rows of A."""
    return scale_a if scale_a is None or problem.scales == "tensor" else scale_a[rows]


def _multiply_wide(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None) -> None:
    """A product in fp32 of operands of 16 bits, which torch has on NVIDIA GPUs alone."""
    if out.is_cuda and torch.version.cuda:
        torch.mm(a, b, out_dtype=out.dtype, out=out)
    else:
        torch.matmul(a.to(out.dtype), b.to(out.dtype), out=out)
    if bias is not None:
        out.add_(bias)


def _multiply_scaled(
    problem: GemmProblem, a: torch.Tensor, scale_a: torch.Tensor, tensors: GemmTensors, out: torch.Tensor,
    bias: torch.Tensor | None,
) -> None:  # fmt: skip
    b, scale_b = tensors.b, tensors.scale_b
    assert scale_b is not None
    # The library adds a bias of 16 bits alone.
    within = bias if out.dtype != torch.float32 else None
    if problem.scales == "block":
        multiply_blocks(a, scale_a, b, scale_b, out, bias)
        return
    if problem.scales == "row" and out.dtype != torch.bfloat16 and out.is_cuda:
        _multiply_unscaled(problem, a, scale_a, b, scale_b, out)
        within = None
    else:
        torch._scaled_mm(
            a, b, scale_a=scale_a, scale_b=scale_b, bias=within, out_dtype=out.dtype, out=out,
            use_fast_accum=problem.fast_accum,
        )  # fmt: skip
    if bias is not None and within is None:
        out.add_(bias)


def _multiply_unscaled(
    problem: GemmProblem, a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor,
    out: torch.Tensor,
) -> None:  # fmt: skip
    """Scales by rows where the library's scaled GEMM gives bf16 alone: the product in fp32, then the scales."""
    one = _one(a.device)
    product = torch._scaled_mm(
        a, b, scale_a=one, scale_b=one, out_dtype=torch.float32, use_fast_accum=problem.fast_accum
    )
    torch.mul(product.mul_(scale_a), scale_b, out=out)


@functools.cache
def _one(device: torch.device) -> torch.Tensor:
    return torch.ones((), dtype=torch.float32, device=device)


def multiply_blocks(
    a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor, out: torch.Tensor,
    bias: torch.Tensor | None,
) -> None:  # fmt: skip
    """Scales by blocks: the library's GEMM on sm_90, to bf16; elsewhere it has none, and multiplies what is
    dequantised, in fp32.
    """
    if out.is_cuda and torch.version.cuda and out.dtype == torch.bfloat16:
        rows = a.shape[0]
        product = out
        if rows % BLOCK_ROWS:
            a, scale_a = _padded(a), _padded(scale_a)
            product = out.new_empty((a.shape[0], out.shape[1]))
        # A's scales column by column, B's in rows of 16 bytes: the library's layouts.
        by_columns, by_rows = scale_a.t().contiguous().t(), _aligned(scale_b.t()).t()
        torch._scaled_mm(a, b, scale_a=by_columns, scale_b=by_rows, out_dtype=out.dtype, out=product)
        if product is not out:
            out.copy_(product[:rows])
    else:
        wide = dequantised(a, scale_a) @ dequantised(b, scale_b)
        out.copy_(wide if bias is None else wide + bias)
        return
    if bias is not None:
        out.add_(bias)


def _padded(matrix: torch.Tensor) -> torch.Tensor:
    """Pad with rows of any contents, up to a multiple of what the library takes."""
    rows, columns = matrix.shape
    padded = matrix.new_empty((-(-rows // BLOCK_ROWS) * BLOCK_ROWS, columns))
    padded[:rows].copy_(matrix)
    return padded


def _aligned(scales: torch.Tensor) -> torch.Tensor:
    """Scales with each row at a multiple of 16 bytes."""
    rows, columns = scales.shape
    if columns % 4 == 0:
        return scales
    wide = scales.new_empty((rows, -(-columns // 4) * 4))[:, :columns]
    return wide.copy_(scales)


def dequantised(matrix: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """An fp8 A or B in fp32: every element times its scale, whichever kind of scales they are."""
    wide = matrix.to(torch.float32)
    if scales.dim() == 1:
        return wide * scales
    for dimension, size in enumerate(matrix.shape):
        if scales.shape[dimension] not in (1, size):
            scales = scales.repeat_interleave(SCALE_BLOCK, dimension).narrow(dimension, 0, size)
    return wide * scales


class GemmKernels:
    """Kernels of a workload whose A lies in a caller's memory until the GEMM reads it."""

    def readable(self, problem: Problem, knobs: Knobs, name: str, operand: torch.Tensor) -> torch.Tensor:
        """Our pointers go by A's columns; descriptors and the library take rows that lie apart."""
        pointers = isinstance(knobs, GemmTile) and not knobs.tma
        return readable(name, operand, apart=("b",) if pointers else ("a", "b"))
