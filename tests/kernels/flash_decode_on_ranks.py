"""Flash decode called on one rank alone, and with other lengths in every call; run in every rank process by
``tests/ranks_of_functions.py``.
"""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.distributed as dist

from autotune.config import Config
from autotune.heap import open_heap
from autotune.machine import machine
from autotune.task import Task
from autotune.workloads import workload

SPINS = 40


def call_alone(configs: list[dict[str, Any]]) -> list[bool]:
    """True if rank 0 timed out, for each config: the others set it up and do not call."""
    found = workload("flash_decode")
    problem = found.problem_type(batch=1, q_heads=2, kv_heads=1, head_dim=64, kv_len=40, world_size=2)
    heap = open_heap(found.heap_bytes(problem))
    operation = found.operation(Task(problem, machine()), heap, SPINS)
    timed_out = []
    for values in configs:
        run = operation.prepare(Config(values))
        operation.refresh(1)
        heap.barrier()
        if dist.get_rank() == 0:
            run()
        heap.barrier()
        timed_out.append(operation.timed_out())
    return timed_out


CALLS = 3
"""On one scratch, back to back."""

FAR_FROM_ONE = (2.0**-70, 1.0, 2.0**40)
"""Factors of queries that have the exponents for it: every key weighs as much, or one alone."""


def replay_with_other_lengths(given: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[str]:
    """The calls with a wrong result, of problems and their configs, each with its lengths."""
    found, rng, wrong = workload("flash_decode"), random.Random(dist.get_rank()), []
    for number, (sizes, values) in enumerate(given):
        problem = found.problem_type.from_dict(sizes)
        heap = open_heap(found.heap_bytes(problem))
        operation: Any = found.operation(Task(problem, machine()), heap, 1 << 20)
        run = operation.prepare(Config(values))
        operation.refresh(number)
        operation._lengths = [drawn_lengths(rng, problem.batch, problem.kv_len) for _ in range(CALLS)]
        operation._queries = operation._queries[[call % 3 for call in range(CALLS)]]
        if problem.dtype == "bf16":
            operation._queries *= torch.tensor(FAR_FROM_ONE).to(operation._queries)[:, None, None, None]
        operation._references = operation._gathered_references()
        operation.poison()
        heap.barrier()
        results = []
        for call in range(CALLS):
            operation.put(call)
            run()
            results.append(operation.outputs()[0].clone())
        heap.barrier()
        allowed = found.tolerance_of(Task(problem, machine()), Config(values)).overall
        for call, result in enumerate(results):
            error = operation.error_of([result], call)
            if not error.overall <= allowed:
                wrong.append(f"{values}: call {call} of {[each.tolist() for each in operation._lengths]}: {error}")
        heap.close()
    return wrong


def drawn_lengths(rng: random.Random, batch: int, longest: int) -> torch.Tensor:
    """Of one kind in each call."""
    kinds = [
        lambda: longest, lambda: 0, lambda: rng.randint(0, longest), lambda: rng.randint(0, 2),
        lambda: rng.choice((0, 0, longest)), lambda: rng.choice((1, 16, 17, 32, 64)),
    ]  # fmt: skip
    length = rng.choice(kinds)
    lengths = [min(length(), longest) for _ in range(batch)]
    if rng.random() < 0.3:
        lengths[rng.randrange(batch)] = longest
    return torch.tensor(lengths, dtype=torch.int32)
