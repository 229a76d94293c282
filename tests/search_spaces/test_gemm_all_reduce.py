"""The space of GEMM + all-reduce: what it forbids, what is tried unmeasured, and that the heap has room for it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from every_mode import whole

from autotune.config import Config
from autotune.machine import H100, MI300X, MI350X, Machine
from autotune.workloads import workload

FOUND = workload("gemm_all_reduce")
SPACE = FOUND.space
LAPTOP = Machine("interpreter", "cpu-interpreter", "cpu", 0, 8, 1 << 30, 0, "shared-memory")
MACHINES = {"h100": H100, "mi300x": MI300X, "mi350x": MI350X, "laptop": LAPTOP}
DECODE = FOUND.problem_type(m=16, n=8192, k=28672, world_size=8)
PUSH = Config(
    {
        "mode": "one_shot", "block_m": 16, "block_n": 64, "block_k": 128, "split_k": 2, "group_m": 1, "num_warps": 4,
        "num_stages": 4, "loads": "pointer", "schedule": "tile", "programs_per_unit": 1, "combine": "sender",
        "protocol": "signal",
    }
)  # fmt: skip


def problems(world_size: int, dtype: str) -> Iterator[Any]:
    """Shapes that serving and training have, even and odd."""
    for m, n, k in itertools.product((1, 16, 64, 100, 4096), (360, 8192), (2880, 8192)):
        yield FOUND.problem_type(m=m, n=n, k=k, dtype=dtype, world_size=world_size)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("world_size", [1, whole(2), 8])
@pytest.mark.parametrize("dtype", ["bf16", whole("fp16"), "fp32"])
def test_what_is_tried_first_is_valid_and_has_every_mode(machine: Machine, world_size: int, dtype: str) -> None:
    for problem in problems(world_size, dtype):
        first, baselines = FOUND.first_configs(problem, machine), FOUND.baselines(problem, machine)
        for config in (*first, *baselines.values()):
            SPACE.check(config, problem, machine)
        assert FOUND.default_config(problem, machine) == first[0]
        assert "bsp eager" in baselines
        tried = {str(config["mode"]) for config in (*first, *baselines.values())}
        alive = {mode for mode in SPACE.modes if any(True for _ in SPACE.enumerate(problem, machine, mode))}
        assert tried == alive, problem


@pytest.mark.parametrize(
    ("config", "machine", "told"),
    [
        (PUSH, H100, None),
        (PUSH.replace(protocol="ll"), H100, None),
        (PUSH.replace(protocol="ll"), MI300X, "LL words arrive"),
        (PUSH.replace(protocol="ll", block_n=256, num_stages=2), H100, "LL words fit"),
        (PUSH.replace(programs_per_unit=2), H100, "persistence"),
        (PUSH.replace(schedule="persistent"), H100, None),
        (PUSH.replace(schedule="persistent", block_n=128), H100, "persistence"),
        (PUSH.replace(schedule="persistent", programs_per_unit=2, split_k=4), H100, "residency"),
        (PUSH.replace(schedule="persistent", programs_per_unit=2, split_k=4, combine="separate"), H100, None),
    ],
)
def test_what_cannot_work_is_refused(config: Config, machine: Machine, told: str | None) -> None:
    violation = SPACE.violation(config, DECODE, machine)
    assert violation is None if told is None else (violation or "").startswith(told), violation


def test_one_shot_is_for_problems_whose_inbox_fits() -> None:
    large = FOUND.problem_type(m=16384, n=8192, k=8192, world_size=8)
    tile = PUSH.replace(block_m=128, block_n=128, num_warps=8, block_k=64, split_k=1)
    assert (SPACE.violation(tile, large, H100) or "").startswith("size of the inbox")
    assert FOUND.default_config(large, H100)["mode"] == "two_shot"
