"""The common part of workloads with a grouped GEMM: the check of a caller's operands."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from autotune.errors import InvalidProblem
from autotune.workloads.gemm import kind_of_scales, operand_type, result_type


def is_transposed(name: str, a: torch.Tensor, b: torch.Tensor, sizes: tuple[str, str, str]) -> bool:
    """True if each local expert's B is the transpose of a contiguous matrix. Raises InvalidProblem unless A, ``name``,
    and B are contiguous otherwise. ``sizes``: the names of A's rows, its columns, and B's columns.
    """
    rows, depth, columns = sizes
    transposed = b.dim() == 3 and b.transpose(1, 2).is_contiguous() and not b.is_contiguous()
    if a.dim() != 2 or b.dim() != 3 or not a.is_contiguous() or not (b.is_contiguous() or transposed):
        raise InvalidProblem(
            f"{name} is {list(a.shape)}, strides {a.stride()}, b {list(b.shape)}, strides {b.stride()}: expected "
            f"{name} [{rows}, {depth}], contiguous, and b [local experts, {depth}, {columns}], contiguous or each the "
            "transpose of a contiguous matrix"
        )
    return transposed


def grouped_operands(
    name: str, a: torch.Tensor, b: torch.Tensor, scales: Sequence[torch.Tensor | None], bias: torch.Tensor | None,
    *, experts: int, world_size: int,
) -> tuple[str, str]:  # fmt: skip
    """Our names of the element type of A, ``name``, and of the kind of its and B's scales. Raises InvalidProblem unless
    ``b`` [local experts, depth, columns] is of so many experts, as deep as A, and goes with the others, a ``bias``
    [local experts, columns] among them.
    """
    if b.shape[0] * world_size != experts or b.shape[1] != a.shape[1]:
        raise InvalidProblem(
            f"b is {list(b.shape)}: with {name} {list(a.shape)} and {experts} experts on {world_size} ranks "
            f"[{experts / world_size:g}, {a.shape[1]}, columns] expected"
        )
    dtype = operand_type(a, b, None, a.dtype)
    scale_a, scale_b = scales
    expected = [b.shape[0], b.shape[2]], result_type(a.dtype)
    if bias is not None and ((list(bias.shape), bias.dtype) != expected or not bias.is_contiguous()):
        raise InvalidProblem(
            f"bias is {list(bias.shape)}, {bias.dtype}, strides {bias.stride()}: a row for each local expert, "
            f"{expected[0]}, contiguous, of type {expected[1]} expected"
        )
    if scale_b is not None and (scale_b.dim() != 3 or scale_b.shape[0] != b.shape[0]):
        raise InvalidProblem(f"scale_b is {list(scale_b.shape)}: expected those of each of {b.shape[0]} experts' B")
    if scale_b is not None and not scale_b.transpose(1, 2).is_contiguous():
        raise InvalidProblem(f"scale_b has strides {scale_b.stride()}: expected the transpose of a contiguous tensor")
    return dtype, kind_of_scales(a, b[0], scale_a, None if scale_b is None else scale_b[0])
