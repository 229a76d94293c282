"""GEMM + all-reduce as a workload: C = all_reduce(A @ B) (+ bias)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from autotune.config import Config
from autotune.kernels.gemm.library import multiply, ring
from autotune.kernels.gemm_all_reduce.launch import KERNELS
from autotune.kernels.gemm_all_reduce.problem import GemmAllReduce
from autotune.kernels.gemm_all_reduce.scratch import Scratch
from autotune.kernels.gemm_all_reduce.space import SPACE, default_config, first_configs
from autotune.kernels.launching.contract import Kernels
from autotune.kernels.launching.knobs import ONE_LAUNCH, TWO_LAUNCHES
from autotune.machine import Machine
from autotune.workloads.comparison import rounded_product
from autotune.workloads.interface import Run
from autotune.workloads.launched import Operands
from autotune.workloads.summed import SummedOperation, SummedWorkload
from autotune.workloads.tolerance import Tolerance


class GemmAllReduceOperation(SummedOperation[GemmAllReduce, Scratch]):
    """Its operands lie in ordinary memory."""

    def draw_operands(self, seed: int) -> torch.Tensor:
        """The residual is the same on all ranks."""
        product = super().draw_operands(seed)
        self.draw_residual(seed * 1000 + 850, self._problem.k)
        return product

    def parts(self) -> dict[str, Run]:
        """The library's GEMM alone, and its all-reduce of C alone."""
        tensors, problem = self._tensors, self._problem
        parts = torch.zeros_like(tensors.c)  # adding up again and again must not overflow
        return {
            "gemm": lambda: multiply(problem, tensors.a, tensors.scale_a, tensors, tensors.c),
            "all_reduce": lambda: torch.distributed.all_reduce(parts) and None,
        }


class GemmAllReduceWorkload(SummedWorkload):
    problem_type = GemmAllReduce
    operation_type = GemmAllReduceOperation
    space = SPACE
    kernels: ClassVar[Kernels[Any, Any, Any, Any]] = KERNELS
    options: ClassVar[tuple[str, ...]] = ("deterministic", "out_dtype", "fast_accum", "wire")
    overlapping: ClassVar[tuple[str, ...]] = ("one_shot", "two_shot")

    def default_problem(self, machine: Machine, world_size: int) -> GemmAllReduce:
        """Llama-70B's MLP down-projection at 16 tokens; a toy of the same form under the interpreter."""
        if machine.is_interpreter:
            return GemmAllReduce(m=16, n=128, k=64 * world_size, world_size=world_size)
        return GemmAllReduce(m=16, n=8192, k=28672 // world_size * world_size, world_size=world_size)

    def default_config(self, problem: GemmAllReduce, machine: Machine) -> Config:
        return default_config(problem, machine)

    def rungs(self, problem: GemmAllReduce, config: Config, machine: Machine) -> Mapping[str, Config | str]:
        """B, S: parts of tiles are kept in memory until the GEMM has ended. D is the config itself."""
        return {
            "B": config.replace(phases=TWO_LAUNCHES),
            "S": config.replace(phases=ONE_LAUNCH),
            "D": config,
            "F": "a rank's own part takes the same way as the others', so that all ranks add in one order",
        }

    def first_configs(self, problem: GemmAllReduce, machine: Machine) -> list[Config]:
        return first_configs(problem, machine)

    def tolerance_of(self, problem: GemmAllReduce, config: Config, machine: Machine) -> Tolerance:
        """Each part is rounded, and the sum; ``ring`` for the library's. Its GEMM may round before it adds a bias."""
        mode = self.kernels.knobs.of(config).mode
        if mode == "bsp":
            roundings = ring(problem.world_size) + 2 * problem.residual
        else:
            roundings = 2.0 + (mode == "own_collective" and problem.bias)
        quantised = problem.wire == "fp8" and mode in ("one_shot", "two_shot")
        return rounded_product(problem, roundings, problem.m * problem.n, machine, quantised=quantised)

    def out_shape(self, world_size: int, operands: Operands, options: Sequence[Any]) -> tuple[int, int]:
        a, b = operands[:2]
        assert a is not None and b is not None
        return a.shape[0], b.shape[1]


WORKLOAD = GemmAllReduceWorkload()
