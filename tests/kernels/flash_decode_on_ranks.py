"""Flash decode called on one rank alone; run in every rank process by ``tests/ranks_of_functions.py``."""

from __future__ import annotations

from typing import Any

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
