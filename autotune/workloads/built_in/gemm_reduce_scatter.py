"""GEMM + reduce-scatter as a workload: C = reduce_scatter(A @ B) (+ bias)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from autotune.config import Config
from autotune.kernels.gemm.library import multiply
from autotune.kernels.gemm_reduce_scatter.copy_engine import chunks
from autotune.kernels.gemm_reduce_scatter.fused import FusedWay
from autotune.kernels.gemm_reduce_scatter.launch import KERNELS
from autotune.kernels.gemm_reduce_scatter.modes import CopyEngine
from autotune.kernels.gemm_reduce_scatter.problem import GemmReduceScatter
from autotune.kernels.launching.collectives import reduce_scatter_single
from autotune.kernels.untuned import done_by_library
from autotune.machine import Machine
from autotune.task import Task
from autotune.workloads.interface import Run
from autotune.workloads.launched import Operands
from autotune.workloads.moded import ModedWorkload
from autotune.workloads.summed import SummedOperation, SummedWorkload


class GemmReduceScatterOperation(SummedOperation[GemmReduceScatter, Any]):
    def parts(self) -> dict[str, Run]:
        """The library's GEMM alone, and its reduce-scatter of such a product alone."""
        tensors, problem = self._tensors, self._problem
        product = torch.randn((problem.m, problem.n), device=self._heap.device).to(tensors.c.dtype)
        return {
            "reduce_scatter": lambda: reduce_scatter_single(tensors.c, product) and None,
            "gemm": lambda: multiply(problem, tensors.a, tensors.scale_a, tensors, product),
        }


class GemmReduceScatterWorkload(ModedWorkload, SummedWorkload):
    problem_type = GemmReduceScatter
    operation_type = GemmReduceScatterOperation
    kernels = KERNELS
    fused_way = FusedWay
    options = ("out_dtype", "fast_accum", "wire")

    def default_problem(self, machine: Machine, world_size: int) -> GemmReduceScatter:
        """Llama-70B's MLP down-projection at 4096 tokens; a toy of the same form under the interpreter."""
        if machine.is_interpreter:
            return GemmReduceScatter(m=32 * world_size, n=64, k=64 * world_size, world_size=world_size)
        return GemmReduceScatter(m=4096, n=8192, k=28672, world_size=world_size)

    def tiled(self, problem: GemmReduceScatter, config: Config) -> tuple[int, int]:
        return problem.rows, problem.world_size

    def waste(self, config: Config, task: Task[GemmReduceScatter]) -> float:
        """``copy_engine``: the rounds of tiles that the chunks' GEMMs take, one after the other."""
        problem = task.problem
        mode = KERNELS.modes.of(config)
        if not isinstance(mode, CopyEngine) or task.machine.is_interpreter:
            return super().waste(config, task)
        parts = chunks(0, problem.rows, problem.world_size, mode.transfer_rows)
        done = sum(done_by_library(task.machine, end - begin, problem.n) for begin, end in parts)
        return done / (problem.m * problem.n)

    def out_shape(self, world_size: int, operands: Operands, options: Sequence[Any]) -> tuple[int, int]:
        rows, columns = super().out_shape(world_size, operands, options)
        return rows // world_size, columns


WORKLOAD = GemmReduceScatterWorkload()
