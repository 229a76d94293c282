"""GEMM + all-reduce at run time: C = all_reduce(A @ B) (+ bias)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from autotune.config import Config
from autotune.kernels.gemm_all_reduce import launch
from autotune.kernels.gemm_all_reduce.problem import GemmAllReduce
from autotune.runtime.context import Context
from autotune.runtime.operators.gemm import GemmOperator
from autotune.runtime.operators.operator import Operands


def gemm_all_reduce(
    context: Context, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None,
    *, deterministic: bool = False, out: torch.Tensor | None = None, config: Config | None = None,
) -> torch.Tensor:  # fmt: skip
    """C = sum over ranks of A @ B (+ bias), on every rank, by the tuned config, on the current stream. Collective.

    ``a`` [m, k_local], contiguous, bf16, fp16 or fp32, and ``b`` [k_local, n], contiguous or the transpose of a
    contiguous [n, k_local], are this rank's slices of the depth; ``bias`` [n], the same on all ranks, is added once.
    ``deterministic`` demands the same bits on every rank and in every call with the same inputs. Returns C [m, n],
    ``out`` where one is given.

    Raises InvalidProblem where shapes, strides or types do not fit, HeapExhausted where the context's heap is too
    small, and on the first call of a problem what ``lookup`` raises.
    """
    return _OPERATOR(context, (a, b, bias), (deterministic,), out, config)


class GemmAllReduceOperator(GemmOperator):
    """Operands lie in ordinary memory."""

    name = "gemm_all_reduce"
    options = "bool deterministic"
    launcher: ClassVar = launch
    problem_type = GemmAllReduce

    def sizes(self, world_size: int, a: torch.Tensor, b: torch.Tensor, options: Sequence[Any]) -> dict[str, Any]:
        """The depth is that of all ranks together."""
        (deterministic,) = options
        return {"m": a.shape[0], "n": b.shape[1], "k": a.shape[1] * world_size, "deterministic": deterministic}

    def out_shape(self, world_size: int, operands: Operands, options: Sequence[Any]) -> tuple[int, int]:
        """[m, n]"""
        a, b, _ = operands
        assert a is not None and b is not None
        return a.shape[0], b.shape[1]


_OPERATOR = GemmAllReduceOperator()
