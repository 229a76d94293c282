"""GEMM + all-reduce as a workload: C = all_reduce(A @ B) (+ bias)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from autotune.kernels.gemm.library import multiply
from autotune.kernels.gemm_all_reduce.fused import FusedWay
from autotune.kernels.gemm_all_reduce.launch import KERNELS
from autotune.kernels.gemm_all_reduce.problem import GemmAllReduce
from autotune.kernels.launching.way import ModeKernels
from autotune.machine import Machine
from autotune.workloads.interface import Run
from autotune.workloads.moded import ModedWorkload
from autotune.workloads.summed import SummedOperation, SummedWorkload


class GemmAllReduceOperation(SummedOperation[GemmAllReduce, Any]):
    def parts(self) -> dict[str, Run]:
        """The library's GEMM alone, and its all-reduce of C alone."""
        tensors, problem = self._tensors, self._problem
        parts = torch.zeros_like(tensors.c)  # adding up again and again must not overflow
        return {
            "gemm": lambda: multiply(problem, tensors.a, tensors.scale_a, tensors, tensors.c),
            "all_reduce": lambda: torch.distributed.all_reduce(parts) and None,
        }


class GemmAllReduceWorkload(ModedWorkload, SummedWorkload):
    problem_type = GemmAllReduce
    operation_type = GemmAllReduceOperation
    kernels: ClassVar[ModeKernels[Any, Any]] = KERNELS
    fused_way = FusedWay
    options: ClassVar[tuple[str, ...]] = ("deterministic", "out_dtype", "fast_accum", "wire")

    def default_problem(self, machine: Machine, world_size: int) -> GemmAllReduce:
        """Llama-70B's MLP down-projection at 16 tokens; a toy of the same form under the interpreter."""
        if machine.is_interpreter:
            return GemmAllReduce(m=16, n=128, k=64 * world_size, world_size=world_size)
        return GemmAllReduce(m=16, n=8192, k=28672 // world_size * world_size, world_size=world_size)


WORKLOAD = GemmAllReduceWorkload()
