"""An operator of one's own in plain torch, without a kernel or a GPU: the sum of all ranks' X, then its RMSNorm.

tune run docs/examples/own_operator.py:SumAndNorm --rows 256 --columns 512 --world-size 2
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn.functional import rms_norm

from autotune.config import Config
from autotune.heap.arena import SymmetricHeap
from autotune.kernels.launching.tensors import TORCH_DTYPES
from autotune.machine import Machine
from autotune.problem import Problem, size
from autotune.search_spaces import Space, choices, numbers
from autotune.task import Task
from autotune.workloads import Error, Operation, Workload
from autotune.workloads.comparison import distance, drawn


@dataclass(frozen=True, kw_only=True)
class Summed(Problem):
    """rms_norm(all_reduce(X)) on every rank."""

    workload = "sum_and_norm"
    free = ("rows",)
    rows: int = size("rows of X")
    columns: int = size("columns of X")


class Tensors(Operation):
    """One rank's X and result; every rank draws all ranks' X, so that the reference needs no communication."""

    def __init__(self, problem: Summed, heap: SymmetricHeap) -> None:
        self.rank, self.ranks, dtype = heap.rank, heap.world_size, TORCH_DTYPES[problem.dtype]
        shape = (problem.rows, problem.columns)
        self.x, self.total, self.out = (torch.empty(shape, dtype=dtype, device=heap.device) for _ in range(3))

    def refresh(self, seed: int) -> None:
        seeds = range(seed * self.ranks, (seed + 1) * self.ranks)
        every = torch.stack([drawn(tuple(self.x.shape), self.x.dtype, self.x.device, each) for each in seeds])
        self.x.copy_(every[self.rank])
        self.expected = rms_norm(every.double().sum(0), self.x.shape[1:], eps=1e-6)
        self.out.fill_(float("nan"))

    def inputs(self) -> list[torch.Tensor]:
        return [self.x]

    def outputs(self) -> list[torch.Tensor]:
        return [self.out]

    def prepare(self, config: Config) -> Callable[[], None]:
        rows = int(config.get("chunk_rows", len(self.x)))

        def run() -> None:
            self.total.copy_(self.x)
            parts = self.total.split(rows)
            sums = [dist.all_reduce(part, async_op=True) for part in parts]
            for part, summed, out in zip(parts, sums, self.out.split(rows), strict=True):
                summed.wait()
                out.copy_(rms_norm(part, self.x.shape[1:], eps=1e-6))

        return run

    def error(self) -> Error:
        return distance(self.out, self.expected)


class SumAndNorm(Workload):
    problem_type = Summed
    space = Space(choices("mode", "whole", "chunked"), numbers("chunk_rows", 16, 32, 64, 128, modes=("chunked",)))

    def default_problem(self, machine: Machine, world_size: int) -> Summed:
        return Summed(rows=256, columns=512, dtype="fp32", world_size=world_size)

    def default_config(self, task: Task[Summed]) -> Config:
        return Config({"mode": "chunked", "chunk_rows": 64})

    def baselines(self, task: Task[Summed]) -> dict[str, Config]:
        return {"whole": Config({"mode": "whole"})}

    def operation(self, task: Task[Summed], heap: SymmetricHeap, spin_limit: int) -> Tensors:
        return Tensors(task.problem, heap)
