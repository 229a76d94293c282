"""GEMM + reduce-scatter at run time: C = reduce_scatter(A @ B) (+ bias)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from autotune.config import Config
from autotune.kernels.gemm_reduce_scatter import launch
from autotune.kernels.gemm_reduce_scatter.problem import GemmReduceScatter
from autotune.runtime.context import Context
from autotune.runtime.operators.gemm import GemmOperator
from autotune.runtime.operators.operator import Operands


def gemm_reduce_scatter(
    context: Context, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None,
    *, out: torch.Tensor | None = None, config: Config | None = None,
) -> torch.Tensor:  # fmt: skip
    """This rank's rows of C = sum over ranks of A @ B (+ bias), by the tuned config, on the current stream. Collective.

    ``a`` [m, k_local], contiguous, bf16, fp16 or fp32, and ``b`` [k_local, n], contiguous or the transpose of a
    contiguous [n, k_local], are this rank's slices of the depth; ``bias`` [n], the same on all ranks, is added once.
    Returns [m / world_size, n], rows rank * m / world_size and so on of C; ``out`` where one is given.

    Raises InvalidProblem where shapes, strides or types do not fit or the ranks do not divide m, HeapExhausted where
    the context's heap is too small, and on the first call of a problem what ``lookup`` raises.
    """
    return _OPERATOR(context, (a, b, bias), (), out, config)


class GemmReduceScatterOperator(GemmOperator):
    """Operands lie in ordinary memory."""

    name = "gemm_reduce_scatter"
    options = ""
    launcher: ClassVar = launch
    problem_type = GemmReduceScatter

    def sizes(self, world_size: int, a: torch.Tensor, b: torch.Tensor, options: Sequence[Any]) -> dict[str, Any]:
        """The depth is that of all ranks together."""
        return {"m": a.shape[0], "n": b.shape[1], "k": a.shape[1] * world_size}

    def out_shape(self, world_size: int, operands: Operands, options: Sequence[Any]) -> tuple[int, int]:
        """[m / world_size, n]"""
        a, b, _ = operands
        assert a is not None and b is not None
        return a.shape[0] // world_size, b.shape[1]


_OPERATOR = GemmReduceScatterOperator()
