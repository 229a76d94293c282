"""First calls for which a rank comes late, while the one that waits launches kernels that its process has not loaded.

To load a kernel the driver may wait for all that runs on the GPU, and ours run until their peers come. So no peer may
have to wait for what the host enqueues behind a call, and no grid of ours that fills the GPU for a kernel behind it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from late_on_ranks import one_of_each_protocol
from ranks_of_functions import run_ranks

from autotune.agreement import Agreement
from autotune.heap import open_heap
from autotune.heap.patience import polls
from autotune.machine import machine
from autotune.task import Task
from autotune.workloads import names, workload

COLD = (
    "log_normal_", "cauchy_", "exponential_", "bernoulli_", "erfinv", "lgamma", "digamma", "i0", "sinc", "logit",
    "asinh", "acosh", "atanh", "expm1", "log1p", "erfc", "trunc", "frac", "rsqrt", "tan", "cosh", "angle", "sgn",
)  # fmt: skip
"""Of torch, each a kernel of its own, the random ones first; nothing else here launches them."""


@pytest.mark.gpu(2)
@pytest.mark.parametrize("name", names())
def test_a_late_rank_waits_for_no_kernel_that_another_loads(name: str, tmp_path: Path) -> None:
    for rank, wrong in enumerate(run_ranks(__file__, "first_calls", 2, tmp_path, gpu=True, argument=name, seconds=300)):
        assert wrong == {}, rank


def first_calls(name: str) -> dict[str, str]:
    """By config what is wrong with its first call."""
    agreement, found, here = Agreement.among(), workload(name), machine()
    problem: Any = found.default_problem(here, 2)
    heap = open_heap(max(64 << 20, found.heap_bytes(problem)), agreement.group)
    task, cold = Task(problem, here), iter(COLD)
    operation = found.operation(task, heap, polls(20.0, interpreted=here.is_interpreter))
    numbers, wrong = torch.rand(1000, device=heap.device), {}
    for number, config in enumerate(one_of_each_protocol(found, problem)):
        if not here.is_interpreter:
            found.compile(task, config)  # which loads nothing
        run = operation.prepare(config)
        operation.refresh(number)
        kernel = getattr(numbers, next(cold, "neg"))
        heap.barrier()
        if heap.rank == number % 2:
            time.sleep(0.3)
        run()
        if heap.rank != number % 2:
            kernel()
        heap.barrier()
        error, allowed = operation.error(), found.tolerance_of(task, config)
        if operation.timed_out() or not (error.overall <= allowed.overall and error.element <= allowed.element):
            wrong[config.to_json()] = f"{error}, timed out: {operation.timed_out()}"
    heap.close()
    return wrong
