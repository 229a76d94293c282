"""A user's own workload, as AUTOTUNE_WORKLOADS loads it: problem, space and configs, but no kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autotune.config import Config
from autotune.machine import Machine
from autotune.problem import Problem, choice, flag, size
from autotune.search_spaces import Space, choices, numbers
from autotune.task import Task
from autotune.workloads import Workload


@dataclass(frozen=True, kw_only=True)
class ToyProblem(Problem):
    """Adds up [width] numbers on every rank."""

    workload = "toy_sum"
    free = ("width",)

    width: int = size("numbers on each rank")
    round_to: str = choice("rounding", ("even", "zero"), "even")
    in_place: bool = flag("write over the input")


class ToyWorkload(Workload):
    name = "toy_sum"
    problem_type = ToyProblem
    space = Space(choices("mode", "bsp", "push"), numbers("block_m", 16, 32, 64, 128, modes=("push",)))

    def default_problem(self, machine: Machine, world_size: int) -> ToyProblem:
        return ToyProblem(width=1024, world_size=world_size)

    def default_config(self, task: Task[Any]) -> Config:
        return Config({"mode": "push", "block_m": 16})

    def baselines(self, task: Task[Any]) -> dict[str, Config]:
        return {"bsp": Config({"mode": "bsp"})}

    def operation(self, *_: Any) -> Any:
        raise NotImplementedError


WORKLOAD = ToyWorkload()
