"""The operator of docs/decorator.md: right in both modes, by its file and class alone; compiled for GPUs; quoted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from every_mode import check_all, few, on_cpu, whole

from autotune.config import Config
from autotune.errors import InvalidProblem
from autotune.machine import H100, MI300X, MI350X, Machine
from autotune.task import Task
from autotune.tuning.screening import Screen
from autotune.workloads import workload

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs/examples/fused_matmul.py"
FOUND = workload(f"{EXAMPLE}:FusedMatmul")


@pytest.mark.parametrize(("world_size", "m", "n", "k"), [whole(1, 20, 40, 48), (2, 34, 36, 36), (3, 3, 16, 32)])
def test_both_modes_are_right(world_size: int, m: int, n: int, k: int) -> None:
    problem = FOUND.problem_type(m=m, n=n, k=k, world_size=world_size)  # type: ignore[call-arg]
    small = FOUND.space.restricted({"BLOCK_M": [16, 32], "BLOCK_N": [32, 64], "num_warps": [4], "num_stages": [2]})
    check_all(FOUND, problem, few(problem, small.enumerate(Task(problem, on_cpu())), 3), {"gather", "pull"})


@pytest.mark.gpu(2)
def test_both_modes_are_right_on_gpus() -> None:
    from autotune.machine import machine

    problem = FOUND.problem_type(m=1030, n=520, k=1000, world_size=2)  # type: ignore[call-arg]
    check_all(FOUND, problem, few(problem, FOUND.space.enumerate(Task(problem, machine())), 12), {"gather", "pull"})


@pytest.mark.parametrize("target", [H100, MI300X, whole(MI350X)], ids=lambda target: target.arch)
def test_it_compiles_ahead_of_the_ranks(target: Machine) -> None:
    problem = FOUND.problem_type(m=4096, n=4096, k=4096, world_size=8)  # type: ignore[call-arg]
    blocks = {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2}
    with Screen(FOUND, Task(problem, target)) as screen:
        for mode in ("pull", "gather"):
            config = Config({"mode": mode, **blocks})
            assert screen.verdict(config, screen.submit(config)) is None


def test_a_problem_that_the_ranks_cannot_share() -> None:
    with pytest.raises(InvalidProblem, match="must divide it"):
        FOUND.problem_type(m=7, n=16, k=16, world_size=2)  # type: ignore[call-arg]


def test_the_walk_quotes_the_examples() -> None:
    walk = (ROOT / "docs/decorator.md").read_text()
    part = walk[walk.index("## A whole operator") :]
    quoted = re.findall(r"```python\n(.*?)```", part, re.DOTALL)
    assert quoted
    for block in quoted:
        for line in filter(str.strip, block.splitlines()):
            assert line.strip() in EXAMPLE.read_text(), line
