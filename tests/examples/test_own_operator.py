"""The operator in plain torch: right in both modes and every type, with chunks that do not divide the rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from every_mode import check_all, on_cpu, whole

from autotune.task import Task
from autotune.workloads import workload

EXAMPLE = Path(__file__).parents[2] / "docs/examples/own_operator.py"
FOUND = workload(f"{EXAMPLE}:SumAndNorm")


@pytest.mark.parametrize("dtype", ["fp32", whole("bf16"), whole("fp16")])
def test_both_modes_are_right(dtype: str) -> None:
    problem = FOUND.problem_type(rows=50, columns=96, world_size=2, dtype=dtype)  # type: ignore[call-arg]
    check_all(FOUND, problem, list(FOUND.space.enumerate(Task(problem, on_cpu()))), {"whole", "chunked"})
