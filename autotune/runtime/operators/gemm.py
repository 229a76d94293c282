"""What the operators with a GEMM share: A, B and maybe a bias, of one element type, stored as the kernels read them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from autotune.errors import InvalidProblem
from autotune.kernels.launching.gemm import GemmTensors
from autotune.kernels.launching.tensors import TORCH_DTYPES
from autotune.problem import Problem
from autotune.runtime.operators.operator import Operands, Operator, element_type


class GemmOperator(Operator):
    """A subclass says how the operands' sizes make a problem, which has ``gemm``: rows, columns and depth on a rank."""

    operands = "Tensor a, Tensor b, Tensor? bias"
    problem_type: ClassVar[type[Any]]

    @abstractmethod
    def sizes(self, world_size: int, a: torch.Tensor, b: torch.Tensor, options: Sequence[Any]) -> dict[str, Any]:
        """The problem's fields that come from two matrices and the options."""

    def problem(self, world_size: int, operands: Operands, options: Sequence[Any]) -> Problem:
        """A is contiguous, B too or the transpose of such a matrix; B's depth and the bias fit the problem."""
        a, b, bias = operands
        assert a is not None and b is not None
        dtype = element_type({"a": a, "b": b, "bias": bias}, TORCH_DTYPES)
        _check_storage(a, b)
        problem: Any = self.problem_type(
            **self.sizes(world_size, a, b, options), dtype=dtype, world_size=world_size,
            b_order="kn" if b.is_contiguous() else "nk", bias=bias is not None,
        )  # fmt: skip
        _, columns, depth = problem.gemm
        if b.shape[0] != depth or (bias is not None and bias.shape != (columns,)):
            raise InvalidProblem(
                f"b is {list(b.shape)}, bias {None if bias is None else list(bias.shape)}; with a {list(a.shape)} on "
                f"{world_size} ranks, b [{depth}, {columns}] and bias [{columns}] are needed ({problem})"
            )
        made: Problem = problem
        return made

    def tensors(self, operands: Operands, out: torch.Tensor) -> GemmTensors:
        """A, B, C and the bias."""
        a, b, bias = operands
        assert a is not None and b is not None
        return GemmTensors(a, b, out, bias)


def _check_storage(a: torch.Tensor, b: torch.Tensor) -> None:
    if a.dim() != 2 or b.dim() != 2 or not a.is_contiguous():
        raise InvalidProblem(
            f"a {list(a.shape)}, strides {a.stride()}, and b {list(b.shape)} must be matrices, and a contiguous"
        )
    if not b.is_contiguous() and not b.t().is_contiguous():
        raise InvalidProblem(
            f"b has strides {b.stride()}: it must be contiguous, or the transpose of a contiguous matrix"
        )
