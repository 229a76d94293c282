"""Combine of experts' rows at their tokens' ranks as a workload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from autotune.config import Config
from autotune.errors import InvalidProblem
from autotune.heap.arena import SymmetricHeap
from autotune.kernels.launching.tensors import TORCH_DTYPES, element_type
from autotune.kernels.moe_combine.launch import KERNELS, Tensors
from autotune.kernels.moe_combine.problem import MoeCombine
from autotune.kernels.moe_combine.scratch import Scratch
from autotune.machine import Machine
from autotune.search_spaces.moe_combine import SPACE, default_config, first_configs
from autotune.workloads.combined import (
    LIBRARY_WAYS,
    DrawnRows,
    combined_error,
    combined_tolerance,
    exchange_and_sum,
    plan_of_a_call,
)
from autotune.workloads.experts import DrawnSets, default_sizes
from autotune.workloads.input_sets import InputSets, poison
from autotune.workloads.interface import Run
from autotune.workloads.launched import LaunchedOperation, LaunchedWorkload, Operands, eager_and_graph
from autotune.workloads.tolerance import Error, Tolerance


class MoeCombineOperation(LaunchedOperation[MoeCombine, Tensors, Scratch]):
    """The tensors of one rank, and the config prepared last."""

    def __init__(self, problem: MoeCombine, heap: SymmetricHeap, machine: Machine, spin_limit: int) -> None:
        """Inputs are undefined until ``refresh``."""
        super().__init__(KERNELS, problem, heap, machine, spin_limit)

    def refresh(self, seed: int) -> None:
        """Every rank draws every rank's tokens and routing, so that the reference needs no communication."""
        self._drawn = DrawnRows(self._problem, self._heap, seed, self._problem.hidden)
        self.put(DrawnRows.PLAIN)
        poison(self._tensors.out)
        self.poison()

    def put(self, number: int) -> None:
        """Enqueue what makes one of the drawn sets the inputs."""
        self._drawn.put(number, self._tensors.rows, self._tensors)
        self._number = number

    def inputs(self) -> Sequence[torch.Tensor]:
        return [getattr(self._tensors, name) for name in KERNELS.operands]

    def outputs(self) -> Sequence[torch.Tensor]:
        return [self._tensors.out]

    def input_sets(self, seed: int) -> InputSets:
        """The same rows times a factor, under another routing each."""
        self.refresh(seed)
        return DrawnSets(self, DrawnRows.COUNT)

    def error(self) -> Error:
        return self.error_of(self.outputs(), self._number)

    def error_of(self, outputs: Sequence[torch.Tensor], number: int) -> Error:
        """The distance from a token's vector times the gates and factors of its experts."""
        weights, exists = self._drawn.weights(number)
        wide = torch.float64 if self._problem.dtype == "fp32" else torch.float32
        expected = self._drawn.own(number).to(wide) * weights.to(wide).sum(1, keepdim=True)
        return combined_error(outputs[0], expected, exists)

    def parts(self) -> dict[str, Run]:
        return exchange_and_sum(self._problem, self._tensors.out)


class MoeCombineWorkload(LaunchedWorkload):
    """Joins problem, kernels and space."""

    problem_type = MoeCombine
    space = SPACE
    kernels = KERNELS
    options = ("routing", "exponent", "deterministic", "histogram")

    def default_problem(self, machine: Machine, world_size: int) -> MoeCombine:
        return MoeCombine(**default_sizes(machine, world_size))

    def default_config(self, problem: MoeCombine, machine: Machine) -> Config:
        return default_config(problem, machine)

    def first_configs(self, problem: MoeCombine, machine: Machine) -> list[Config]:
        return first_configs(problem, machine)

    def baselines(self, problem: MoeCombine, machine: Machine) -> dict[str, Config]:
        return eager_and_graph(SPACE, LIBRARY_WAYS, problem, machine)

    def tolerance_of(self, problem: MoeCombine, config: Config, machine: Machine) -> Tolerance:
        return combined_tolerance(problem, config["mode"] == "bsp", problem.top_k, machine)

    def operation(
        self, problem: MoeCombine, heap: SymmetricHeap, machine: Machine, spin_limit: int
    ) -> MoeCombineOperation:
        return MoeCombineOperation(problem, heap, machine, spin_limit)

    def problem_of(self, world_size: int, operands: Operands, options: Sequence[Any]) -> MoeCombine:
        """Rows are a contiguous matrix, laid out by the plan of the tokens whose ids are given."""
        rows, *plan, ids = (tensor for tensor in operands if tensor is not None)
        dtype = element_type({"rows": rows}, TORCH_DTYPES)
        if rows.dim() != 2 or not rows.is_contiguous():
            raise InvalidProblem(
                f"rows are {list(rows.shape)}, strides {rows.stride()}: needed is [capacity, hidden], contiguous"
            )
        given: dict[str, Any] = dict(zip(self.options, options, strict=True))
        given |= plan_of_a_call(world_size, rows, plan, ids)
        return MoeCombine(hidden=rows.shape[1], **given, dtype=dtype, world_size=world_size)

    def out_shape(self, world_size: int, operands: Operands, options: Sequence[Any]) -> tuple[int, ...]:
        """A row for each token of this rank."""
        rows, ids = operands[0], operands[-1]
        assert rows is not None and ids is not None
        return (ids.shape[0], rows.shape[1])


WORKLOAD = MoeCombineWorkload()
