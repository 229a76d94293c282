"""What is tried without measuring is valid on every machine, for shapes from a token to a training step."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from autotune.environment import H100, MI300X, MI350X, Machine
from autotune.workloads import workload

FOUND = workload("all_gather_gemm")
LAPTOP = Machine("interpreter", "cpu-interpreter", "cpu", 0, 8, 1 << 30, 0, "shared-memory")
H200 = dataclasses.replace(H100, device="NVIDIA H200")
MACHINES = {"h100": H100, "h200": H200, "mi300x": MI300X, "mi350x": MI350X, "laptop": LAPTOP}


def problems(world_size: int) -> Iterator[Any]:
    """Shapes that serving and training have, even and odd, in both layouts."""
    shapes = itertools.product(
        (1, 8, 16, 64, 100 * world_size, 4096), (2880, 8192), (360, 7168), ("bf16", "fp16", "fp32"), ("rows", "k")
    )
    for m, k, n_local, dtype, layout in shapes:
        rows = -(-m // world_size) * world_size if layout == "rows" else m
        yield FOUND.problem_type(m=rows, n=n_local * world_size, k=k, dtype=dtype, layout=layout, world_size=world_size)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_defaults_first_configs_and_baselines_are_valid(machine: Machine, world_size: int) -> None:
    for problem in problems(world_size):
        default = FOUND.default_config(problem, machine)
        first = FOUND.first_configs(problem, machine)
        baselines = FOUND.baselines(problem, machine)
        for config in (default, *first, *baselines.values()):
            FOUND.space.check(config, problem, machine)
        assert default == first[0]
        assert "bsp eager" in baselines


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("world_size", [1, 2, 8])
def test_every_mode_that_has_a_config_is_tried_first(machine: Machine, world_size: int) -> None:
    for problem in problems(world_size):
        tried = {str(config["mode"]) for config in FOUND.first_configs(problem, machine)}
        tried |= {str(config["mode"]) for config in FOUND.baselines(problem, machine).values()}
        alive = {mode for mode in FOUND.space.modes if any(True for _ in FOUND.space.enumerate(problem, machine, mode))}
        assert tried == alive, problem
