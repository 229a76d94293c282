"""GEMM + all-reduce + residual + RMSNorm as a workload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from autotune.config import Config
from autotune.kernels.all_reduce_norm.ways import norm_launch
from autotune.kernels.gemm_all_reduce_norm.launch import KERNELS, QUANTISING, NormedTensors
from autotune.kernels.gemm_all_reduce_norm.modes import LibraryCollective
from autotune.kernels.gemm_all_reduce_norm.problem import GemmAllReduceNorm
from autotune.machine import Machine
from autotune.task import Task
from autotune.workloads.built_in.all_reduce_norm import NormedWorkload, Quantising, norm_of, widened
from autotune.workloads.built_in.gemm_all_reduce import GemmAllReduceOperation, GemmAllReduceWorkload
from autotune.workloads.comparison import drawn_bias, drawn_weight, farthest, in_fp8, weighted
from autotune.workloads.gemm import demand_like
from autotune.workloads.interface import Run
from autotune.workloads.launched import Operands
from autotune.workloads.tolerance import Error, Tolerance


class GemmAllReduceNormOperation(GemmAllReduceOperation):
    """GEMM + all-reduce's, with a residual and a weight that are the same on all ranks."""

    _tensors: NormedTensors
    _problem: GemmAllReduceNorm

    def refresh(self, seed: int) -> None:
        """The residual is as large as the product."""
        tensors, device = self._tensors, self._heap.device
        shape, dtype = tuple(tensors.residual.shape), tensors.residual.dtype
        tensors.residual.copy_(drawn_bias(shape, dtype, device, seed * 1000 + 997, self._problem.k))
        tensors.weight.copy_(drawn_weight(shape[1:], device, seed * 1000 + 998))
        super().refresh(seed)

    def error_of(self, outputs: Sequence[torch.Tensor], number: int) -> Error:
        """The larger distance of the two results from their references; of an fp8 norm with its scales."""
        tensors = self._tensors
        expected = norm_of(self.expected(number), tensors.residual, tensors.weight, self._problem.eps)
        return farthest(widened(outputs), expected)

    def parts(self) -> dict[str, Run]:
        """The library's GEMM alone, its all-reduce alone, and our sum and norm of what that leaves."""
        tensors = self._tensors
        mode = LibraryCollective.untuned(Task(self._problem.as_varying(), self._machine))
        assert mode is not None, self._problem
        norm = norm_launch(self._problem.norm, mode, tensors.norming(tensors.c), tensors.c)
        return {**super().parts(), "norm": norm.run}


class GemmAllReduceNormWorkload(NormedWorkload, GemmAllReduceWorkload):
    problem_type = GemmAllReduceNorm
    operation_type = GemmAllReduceNormOperation
    kernels = KERNELS
    quantising = QUANTISING
    fused_norm = LibraryCollective
    options: ClassVar[tuple[str, ...]] = ("deterministic", "out_dtype", "fast_accum", "eps")

    def default_problem(self, machine: Machine, world_size: int) -> GemmAllReduceNorm:
        fields = super().default_problem(machine, world_size).as_dict()
        own = {field.name for field in GemmAllReduceNorm.in_order()}
        return GemmAllReduceNorm(**{name: value for name, value in fields.items() if name in own})

    def tolerance_of(self, task: Task[Any], config: Config) -> Tolerance:
        found = weighted(super().tolerance_of(task, config))
        return found if task.problem.quantised == "none" else in_fp8(found)

    def problem_of(self, world_size: int, operands: Operands, options: Sequence[Any]) -> GemmAllReduceNorm:
        """GEMM + all-reduce's; residual and weight are contiguous, of the result's shape and type."""
        *of_gemm, residual, weight = operands
        problem = super().problem_of(world_size, of_gemm, options)
        assert isinstance(problem, GemmAllReduceNorm)
        dtype = self.out_dtype(operands, options)
        demand_like("residual", residual, (problem.m, problem.n), dtype)
        demand_like("weight", weight, (problem.n,), dtype)
        return problem


class QuantisingWorkload(Quantising, GemmAllReduceNormWorkload):
    kernels = QUANTISING
    options: ClassVar = (*GemmAllReduceNormWorkload.options, "quantised")


WORKLOAD = GemmAllReduceNormWorkload()
QUANTISING_NORM = QuantisingWorkload()
