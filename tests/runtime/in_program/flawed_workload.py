"""A user's workload without kernels: a sum over the ranks, with configs and problems that fail on rank 1."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from autotune.config import Config
from autotune.machine import Machine
from autotune.problem import Problem, choice, size
from autotune.search_spaces import Space, choices, numbers
from autotune.task import Task
from autotune.workloads import Tolerance, Workload
from autotune.workloads.interface import Operation, Run
from autotune.workloads.tolerance import Error

FLAWS = ("none", "too much", "too much later", "times out", "wrong")
TROUBLES = ("none", "raises", "hangs", "loses its device", "is interrupted", "is always wrong")
WITH_ROUTINGS = 1024
LATE = 3.0
"""Seconds for which a rank hangs: longer than the time-out of the tests."""


@dataclass(frozen=True, kw_only=True)
class FlawedProblem(Problem):
    """``trouble`` comes to rank 1 once the baseline has been measured; an interrupt to rank 0."""

    workload = "flawed_sum"

    width: int = size("numbers on each rank")
    trouble: str = choice("what goes wrong", TROUBLES, "none")

    def other_routings(self) -> dict[str, FlawedProblem]:
        return {"half": replace(self, width=WITH_ROUTINGS // 2)} if self.width == WITH_ROUTINGS else {}


class FlawedOperation(Operation):
    def __init__(self, problem: FlawedProblem, heap: Any) -> None:
        self._problem, self._heap = problem, heap
        self._own = heap.allocate((problem.width,), torch.float32)
        self._sum = torch.empty(problem.width)
        self._struck = heap.rank == 1
        self._flaw = "none"

    def refresh(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        parts = torch.randn(self._heap.world_size, self._problem.width, generator=generator)
        self._own.copy_(parts[self._heap.rank])
        self._reference = parts.sum(dim=0)
        self._sum.fill_(float("nan"))

    def prepare(self, config: Config) -> Run:
        self._flaw = str(config.get("flaw", "none")) if self._struck else "none"
        if self._flaw == "too much":
            self._heap.allocate((self._heap.size,), torch.float32)
        return self._by_the_library if config["mode"] == "bsp" else self._by_reading

    def _by_the_library(self) -> None:
        self._sum.copy_(self._own)
        dist.all_reduce(self._sum)

    def _by_reading(self) -> None:
        if self._problem.trouble == "is interrupted" and self._heap.rank == 0:
            raise KeyboardInterrupt
        if self._struck and self._problem.trouble != "none":
            self._trouble()
        if self._flaw == "too much later":
            raise MemoryError("planted")
        self._heap.host_barrier()  # all are in place
        torch.sum(
            torch.stack([self._heap.peer(self._own, rank) for rank in range(self._heap.world_size)]), 0, out=self._sum
        )
        self._heap.host_barrier()  # all have been read
        if self._flaw == "wrong":
            self._sum[0] += 100

    def _trouble(self) -> None:
        match self._problem.trouble:
            case "raises":
                raise ZeroDivisionError("planted")
            case "hangs":
                time.sleep(LATE)
            case "loses its device":
                raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def inputs(self) -> list[torch.Tensor]:
        return [self._own]

    def outputs(self) -> list[torch.Tensor]:
        return [self._sum]

    def error(self) -> Error:
        difference = (self._sum - self._reference).abs().max()
        if self._struck and self._problem.trouble == "is always wrong":
            difference += 100
        return Error(float(difference), float(difference))

    def parts(self) -> dict[str, Run]:
        return {"sum": self._by_the_library}

    def timed_out(self) -> bool:
        return self._flaw == "times out"


class FlawedWorkload(Workload):
    set_up: ClassVar[list[int]] = []

    name = "flawed_sum"
    problem_type = FlawedProblem
    space = Space(
        choices("mode", "bsp", "pull"),
        choices("flaw", *FLAWS, modes=("pull",)),
        numbers("tile", 16, 32, 64, modes=("pull",)),
    )

    def default_problem(self, machine: Machine, world_size: int) -> FlawedProblem:
        return FlawedProblem(width=1024, world_size=world_size)

    def default_config(self, task: Task[Any]) -> Config:
        return Config({"mode": "pull", "flaw": "none", "tile": 16})

    def first_configs(self, task: Task[Any]) -> list[Config]:
        return [Config({"mode": "pull", "flaw": flaw, "tile": 16}) for flaw in FLAWS]

    def baselines(self, task: Task[Any]) -> dict[str, Config]:
        return {"bsp": Config({"mode": "bsp"})}

    def tolerance(self, problem: Any) -> Tolerance:
        return Tolerance(1e-4, 1e-4)

    def heap_bytes(self, problem: Any) -> int:
        return 1 << 20

    def operation(self, task: Task[Any], heap: Any, spin_limit: int) -> FlawedOperation:
        self.set_up.append(task.problem.width)
        return FlawedOperation(task.problem, heap)


WORKLOAD = FlawedWorkload()
