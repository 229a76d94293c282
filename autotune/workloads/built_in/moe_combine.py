"""Combine of experts' rows at their tokens' ranks as a workload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from autotune.config import Config
from autotune.errors import InvalidProblem
from autotune.kernels.launching.tensors import TORCH_DTYPES, element_type
from autotune.kernels.moe_combine.launch import KERNELS
from autotune.kernels.moe_combine.own import Scratch
from autotune.kernels.moe_combine.problem import MoeCombine
from autotune.kernels.moe_combine.tensors import Tensors
from autotune.task import Task
from autotune.workloads.combined import (
    CombinedOperation,
    CombinedWorkload,
    DrawnRows,
    combined_tolerance,
    plan_of_a_call,
)
from autotune.workloads.comparison import drawn_with_zeros
from autotune.workloads.launched import Operands
from autotune.workloads.moded import ModedWorkload
from autotune.workloads.tolerance import Tolerance


class MoeCombineOperation(CombinedOperation[MoeCombine, Tensors, Scratch]):
    def draw(self, seed: int) -> None:
        self.drawn = DrawnRows(self._problem, self._heap, seed, self._problem.hidden, drawn_with_zeros)

    def sums(self, number: int, weights: torch.Tensor) -> torch.Tensor:
        """A token's vector times the gates and factors of its experts."""
        return self.drawn.own(number).to(self.wide) * weights.sum(1, keepdim=True)


class MoeCombineWorkload(ModedWorkload, CombinedWorkload):
    problem_type = MoeCombine
    operation_type = MoeCombineOperation
    kernels = KERNELS
    options = ("routing", "exponent", "deterministic", "histogram")

    def tolerance_of(self, task: Task[MoeCombine], config: Config) -> Tolerance:
        return combined_tolerance(task, self.kernels.way_of(config).roundings(task.problem), task.problem.top_k)

    def problem_of(self, world_size: int, operands: Operands, options: Sequence[Any]) -> MoeCombine:
        """Rows are a contiguous matrix, laid out by the plan of the tokens whose ids are given."""
        rows, *plan, ids = operands
        dtype = element_type({"rows": rows}, TORCH_DTYPES)
        if rows.dim() != 2 or not rows.is_contiguous():
            raise InvalidProblem(
                f"rows are {list(rows.shape)}, strides {rows.stride()}: expected [capacity, hidden], contiguous"
            )
        given: dict[str, Any] = dict(zip(self.options, options, strict=True))
        given |= plan_of_a_call(world_size, rows, plan, ids)
        return MoeCombine(hidden=rows.shape[1], **given, dtype=dtype, world_size=world_size)

    def out_shape(self, world_size: int, operands: Operands, options: Sequence[Any]) -> tuple[int, ...]:
        rows, ids = operands[0], operands[-1]
        return (ids.shape[0], rows.shape[1])


WORKLOAD = MoeCombineWorkload()
