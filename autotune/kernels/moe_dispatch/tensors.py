"""Operands and results of the dispatch, alone or before a GEMM."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from autotune.kernels.launching.tensors import OPERAND_DTYPES, Allocate
from autotune.kernels.moe_dispatch.problem import DispatchedProblem


@dataclass(frozen=True)
class Dispatched:
    """One rank's tokens, and the plan of its rows; all contiguous."""

    x: torch.Tensor
    """[tokens, hidden]."""
    ids: torch.Tensor
    """int32 [tokens, top_k]: -1 is none."""
    gates: torch.Tensor
    """fp32 [tokens, top_k]."""
    offsets: torch.Tensor
    """int32 [local experts + 1]; this and the others are ``moe.routing.Plan``."""
    pairs: torch.Tensor
    """int32 [capacity]."""
    row_gates: torch.Tensor
    """fp32 [capacity]."""

    @staticmethod
    def allocate(problem: DispatchedProblem, own: Allocate) -> dict[str, torch.Tensor]:
        """The fields' tensors, by name."""
        ints, chosen = torch.int32, (problem.tokens, problem.top_k)
        return {
            "x": own((problem.tokens, problem.hidden), OPERAND_DTYPES[problem.dtype]),
            "ids": own(chosen, ints), "gates": own(chosen, torch.float32),
            "offsets": own((problem.local_experts + 1,), ints), "pairs": own((problem.capacity,), ints),
            "row_gates": own((problem.capacity,), torch.float32),
        }  # fmt: skip


@dataclass(frozen=True)
class Tensors(Dispatched):
    rows: torch.Tensor
    """[capacity, hidden]."""


@dataclass(frozen=True)
class ScaledTensors(Tensors):
    scale_x: torch.Tensor
    """fp32 [tokens, 1] or [tokens, hidden / 128]."""
    scale_rows: torch.Tensor
    """fp32 [capacity, 1] or [capacity, hidden / 128]."""
