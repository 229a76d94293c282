"""The list of taxes to measure on a GPU host, and its table."""

from __future__ import annotations

import taxes
from fakes import EIGHT_GPUS, FakeGang

from autotune.task import Task
from autotune.taxes.measure import Amount, Base, measure
from autotune.taxes.result import summary
from autotune.workloads import workload

AMOUNT = Amount(rounds=2, dose_rounds=1, calls=1, warmup=0, warmed=0.0, late=(0.0, 10.0))


def test_a_row_has_what_was_measured() -> None:
    found = workload("gemm_all_reduce")
    problem = found.default_problem(EIGHT_GPUS, 8)
    config = found.default_config(Task(problem, EIGHT_GPUS)).replace(num_stages=3)
    gang = FakeGang(problem)
    measured = measure(found, Task(problem, EIGHT_GPUS), gang, config, Base(config, "the winner"), AMOUNT)  # type: ignore[arg-type]
    row = taxes.row("gemm-all-reduce-m1", summary(measured))
    cells = dict(zip(taxes.HEAD, row, strict=True))
    assert cells["problem"] == "gemm-all-reduce-m1" and "(with fusion)" in cells["locality"]
    assert cells["locality tax"] == "–", "there is no rung F"
    assert cells["late: B, D"].startswith("1.00, ")
