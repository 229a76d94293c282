"""Shared by the tests of invariant problems: random small ones of every workload that takes the field, a fake gang."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from typing import Any

from fakes import FakeGang

from autotune.config import Config
from autotune.machine import Machine
from autotune.outcome import Evaluation, Outcome
from autotune.problem import Problem
from autotune.task import Task
from autotune.workloads import workload

NAMES = (
    "all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce", "gemm_all_reduce_norm", "all_reduce_norm",
    "flash_decode", "moe_combine", "moe_gemm_combine", "moe_dispatch_gemm",
)  # fmt: skip


def small_problem(name: str, world_size: int, seed: int, **fields: Any) -> Any:
    """An invariant problem of odd sizes. In fp32, where there is one: rounding to 16 bits hides the order of a sum."""
    rng = random.Random(f"{name} {seed}")
    sizes: dict[str, Any] = {"world_size": world_size, "invariant": True}
    if name == "flash_decode":
        sizes |= {"batch": rng.randint(3, 5), "kv_len": rng.randint(130, 190), "page_size": rng.choice((1, 4, 16))}
        sizes |= {"q_heads": 2, "kv_heads": 1, "head_dim": 64, "dtype": "fp16"}
    elif name.startswith("moe"):
        sizes |= {"tokens": rng.randint(4, 6), "hidden": 64, "experts": 2 * world_size, "top_k": 2, "dtype": "fp32"}
        sizes |= {"width": 32} if "gemm" in name else {}
    else:
        gathers = name == "all_gather_gemm"  # its ranks share the columns, those of the others the depth
        columns, depth = (world_size, 1) if gathers else (1, world_size)
        sizes |= {"m": rng.randint(6, 9) * world_size, "n": 32 * columns, "dtype": "fp32"}
        sizes |= {"k": rng.choice((104, 136)) * depth} if "gemm" in name else {}
    return workload(name).problem_type(**{**sizes, **fields})


def configs_of(problem: Problem, here: Machine, seed: int, near: int) -> Iterator[Config]:
    """Valid configs: of each mode that is left the first that a search tries, and ``near`` neighbours of it."""
    found, task, rng = workload(problem.workload), Task(problem, here), random.Random(seed)
    first = {str(config["mode"]): config for config in reversed(found.first_configs(task))}
    for config in first.values():
        yield config
        neighbours = list(found.space.neighbours(config, task))
        yield from rng.sample(neighbours, min(len(neighbours), near))


class Rows(FakeGang):
    """A size takes a share of the formula, and ranks compare rows: those of ``varying`` configs differ."""

    def __init__(self, problem: Any, varying: tuple[Config, ...] = ()) -> None:
        super().__init__(problem)
        self.varying, self.compared = varying, list[tuple[Any, tuple[int, ...]]]()
        self.largest = problem.batch_rows

    def evaluate(self, config: Config, seed: int, plan: Any) -> Evaluation:
        found, share = super().evaluate(config, seed, plan), self.problems[-1].batch_rows / self.largest
        if found.latency is None:
            return found
        scaled = {name: getattr(found.latency, name) * share for name in ("median", "low", "high", "skew")}
        by_rank = tuple(each * share for each in found.latency.by_rank)
        return dataclasses.replace(found, latency=dataclasses.replace(found.latency, **scaled, by_rank=by_rank))

    def keep_batch(self, config: Config, seed: int) -> Evaluation | None:
        return None

    def compare_rows(self, config: Config, seed: int, firsts: tuple[int, ...]) -> Evaluation | None:
        self.compared.append((self.problems[-1], firsts))
        return Evaluation(Outcome.WRONG_RESULT, "planted") if config in self.varying else None
