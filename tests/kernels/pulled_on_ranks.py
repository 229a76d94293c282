"""Counts the bytes that a kernel loads from a peer; run in every rank process by ``tests/ranks_of_functions.py``."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch.distributed as dist
from triton.runtime import interpreter

from autotune.config import Config
from autotune.heap import open_heap
from autotune.machine import machine
from autotune.task import Task
from autotune.workloads import workload


def bytes_of_peers_shard(argument: dict[str, Any]) -> int:
    """What one call of a config of all-gather + GEMM loads from the other rank's shard of A, which is in place."""
    found = workload("all_gather_gemm")
    problem = found.problem_type(**argument["problem"], world_size=2, in_place=True)
    heap = open_heap(found.heap_bytes(problem), dist.new_group(backend="gloo"))
    operation: Any = found.operation(Task(problem, machine()), heap, 1 << 12)
    operation.refresh(1)
    run = operation.prepare(Config(argument["config"]))
    shard = heap.peer(operation.inputs()[0], 1 - heap.rank)
    first, last = shard.data_ptr(), shard.data_ptr() + shard.numel() * shard.element_size() - 1
    loaded, original = 0, interpreter.InterpreterBuilder.create_masked_load

    def counted(self: Any, pointers: Any, mask: Any, *others: Any) -> Any:
        nonlocal loaded
        there = (pointers.data >= first) & (pointers.data <= last) & mask.data
        result = original(self, pointers, mask, *others)
        # Rows beyond the end repeat the last one: within a load an address is read once.
        loaded += np.unique(pointers.data[there]).size * result.data.itemsize
        return result

    interpreter.InterpreterBuilder.create_masked_load = counted
    heap.barrier()
    run()
    heap.barrier()
    assert operation.error().overall < found.tolerance(problem).overall
    return loaded
