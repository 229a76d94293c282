"""Shared by the workloads whose C is a sum over ranks: the sizes in a caller's operands, the reference, tolerances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import torch

from autotune.config import Config
from autotune.kernels.gemm.problem import SummedProblem
from autotune.kernels.launching.contract import S
from autotune.kernels.launching.way import ModeKernels, Way
from autotune.task import Task
from autotune.workloads.comparison import rounded_product
from autotune.workloads.gemm import GemmOperation, GemmWorkload
from autotune.workloads.launched import Operands
from autotune.workloads.tolerance import Tolerance

Q = TypeVar("Q", bound=SummedProblem)


class SummedOperation(GemmOperation[Q, S], Generic[Q, S]):
    """Its operands lie in ordinary memory. A rank gets all rows of C, or its share, which has a residual of its own."""

    def draw_operands(self, seed: int) -> torch.Tensor:
        """Every rank draws every rank's operands, one rank's at a time: a large B is there only once more."""
        tensors, rank, rows = self._tensors, self._heap.rank, self._problem.rows
        share = rank if rows < self._problem.m else 0
        product = torch.zeros(tensors.c.shape, dtype=self.wide, device=self._heap.device)
        for source in range(self._heap.world_size):
            a, b = self.draw_a(seed * 1000 + source), self.draw_b(seed * 1000 + 500 + source)
            scale_a = self.draw_scales(tensors.scale_a, seed * 1000 + 250 + source)
            scale_b = self.draw_scales(tensors.scale_b, seed * 1000 + 600 + source)
            product.addmm_(self.widened(a, scale_a)[share * rows : (share + 1) * rows], self.widened(b, scale_b))
            if source == rank:
                self.take(a, scale_a, b, scale_b)
        self.draw_added(tensors.bias, seed * 1000 + 750, self._problem.k)
        self.draw_added(self.residual, seed * 1000 + 850 + share, self._problem.k)
        return product


class SummedWorkload(GemmWorkload):
    """Its ranks have slices of the depth."""

    kernels: ClassVar[ModeKernels[Any, Any]]
    fused_way: ClassVar[type[Way[Any, Any, Any, Any]]]
    """Its parts travel as fp8 where the problem says so."""

    def sizes(self, world_size: int, a: torch.Tensor, b: torch.Tensor, options: Mapping[str, Any]) -> dict[str, int]:
        """The depth is that of all ranks together."""
        return {"m": a.shape[0], "n": b.shape[1], "k": a.shape[1] * world_size}

    def tolerance_of(self, task: Task[Any], config: Config) -> Tolerance:
        problem, way = task.problem, self.kernels.way_of(config)
        quantised = problem.wire == "fp8" and isinstance(way, self.fused_way)
        return rounded_product(task, way.roundings(problem), problem.rows * problem.n, quantised=quantised)

    def out_shape(self, world_size: int, operands: Operands, options: Sequence[Any]) -> tuple[int, int]:
        a, b = operands[:2]
        return a.shape[0], b.shape[1]
