"""The example of docs/kernels.md: right in every mode, compiled for GPUs, and quoted as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from every_mode import check_all, on_cpu, whole

from autotune.config import Config
from autotune.machine import H100, MI300X, MI350X, Machine
from autotune.task import Task
from autotune.tuning.screening import Screen
from autotune.workloads import workload

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs/examples/all_gather.py"
WORKLOAD = workload(f"{EXAMPLE}:AllGatherWorkload")


@pytest.mark.parametrize(("world_size", "rows", "columns"), [whole(1, 3, 50), (2, 8, 300), (3, 1, 7)])
def test_every_mode_is_right(world_size: int, rows: int, columns: int) -> None:
    problem = WORKLOAD.problem_type(rows=rows, columns=columns, world_size=world_size)
    configs = list(WORKLOAD.space.enumerate(Task(problem, on_cpu())))
    check_all(WORKLOAD, problem, configs[:: max(1, len(configs) // 4)], {"bsp", "push", "pull"})


@pytest.mark.parametrize("machine", [H100, whole(MI300X), whole(MI350X)], ids=lambda machine: machine.arch)
def test_it_compiles(machine: Machine) -> None:
    problem = WORKLOAD.problem_type(rows=64, columns=8192, world_size=8)
    with Screen(WORKLOAD, Task(problem, machine)) as screen:
        for mode in ("push", "pull"):
            config = Config({"mode": mode, "block": 2048, "num_warps": 4})
            assert screen.verdict(config, screen.submit(config)) is None


def test_the_guide_quotes_the_example() -> None:
    guide, code = (ROOT / "docs/kernels.md").read_text(), EXAMPLE.read_text()
    quoted = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert quoted
    for block in quoted:
        for line in filter(str.strip, block.splitlines()):
            assert line.strip() in code, line
