"""The GEMM's part of the spaces at its edges: shared memory, splits, scales."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from edges import Edges

from autotune.config import Config
from autotune.machine import H100, MI300X, MI350X, Machine
from autotune.task import Task
from autotune.workloads import workload

REDUCE = workload("gemm_all_reduce")
A100 = dataclasses.replace(H100, device="NVIDIA A100", arch="sm_80", compute_units=108, shared_memory=163 * 1024)
TILE = Config({
    "mode": "one_shot", "block_m": 16, "block_n": 64, "block_k": 128, "split_k": 1, "group_m": 1, "num_warps": 4,
    "num_stages": 1, "loads": "pointer", "schedule": "tile", "programs_per_unit": 1, "combine": "sender",
    "protocol": "signal",
})  # fmt: skip
FP8 = {"b_order": "nk"}
SIZES = {"m": 256, "n": 8192, "k": 28672, "world_size": 2}


@pytest.mark.parametrize(
    ("machine", "fields", "tile", "most"),
    [
        # 80 KiB a stage, of 227 KiB, or of 160: below 64 rows one stage of 16 bits is in registers.
        (H100, {}, {"block_k": 512}, 3),
        (H100, {"dtype": "fp32"}, {"block_k": 256}, 2),
        (MI350X, {}, {"block_k": 512}, 1),  # two would be all of the LDS, but for what they are padded with
        (MI300X, {}, {"block_k": 256}, 2),  # 40 KiB a stage, of 64, and one on its way in
        # 48 KiB a stage; half of the columns of C that TMA stores: 32 KiB in 16 bits.
        (H100, {}, {"block_m": 128, "block_n": 256, "block_k": 64, "num_warps": 8, "loads": "tma"}, 4),
        (H100, {"out_dtype": "fp32"}, {"block_m": 128, "block_n": 256, "block_k": 64, "num_warps": 8}, 4),
        (H100, {"out_dtype": "fp32"},
         {"block_m": 128, "block_n": 256, "block_k": 64, "num_warps": 8, "loads": "tma"}, 3),
    ],
)  # fmt: skip
def test_as_many_stages_as_shared_memory_holds(
    machine: Machine, fields: dict[str, Any], tile: dict[str, Any], most: int
) -> None:
    task = Task(REDUCE.problem_type(**{**SIZES, **fields}), machine)
    configs = [TILE.replace(**tile, num_stages=stages) for stages in range(1, 7)]
    assert all(map(REDUCE.space.holds, configs))
    broken = [REDUCE.space.broken(config, task) for config in configs]
    assert [each and each.name for each in broken] == [None] * most + ["shared memory"] * (6 - most)


class TestGemm(Edges):
    name = "gemm_all_reduce"
    sizes = SIZES
    # fmt: off
    rows = [(TILE.replace(**tile), {"m": 256 if "block_m" in tile else 16, **fields}, *end) for tile, fields, *end in [
        ({"split_k": 2, "block_k": 512}, {"k": 2 * 512}, H100, "depth of a split"),
        ({"split_k": 2, "block_k": 512}, {"k": 2 * 520}, H100, None),
        ({"split_k": 8}, {"n": 132 * 64}, H100, None),  # 8 programs for each unit
        ({"split_k": 8}, {"n": 133 * 64}, H100, "splits needed"),
        ({"block_n": 32}, {}, H100, None),  # 128 elements of the tile for each warp
        ({"block_n": 32, "num_warps": 8}, {}, H100, "a warp's share"),
        ({"block_m": 128, "block_n": 256, "block_k": 64, "num_warps": 8}, {}, H100, None),  # 128 registers
        ({"block_n": 128}, {"n": 64}, H100, "no larger than the problem"),
        ({}, {"k": 2 * 64}, H100, "no larger than the problem"),
        ({"block_k": 64}, {"k": 2 * 40, "n": 40}, H100, None),
        ({}, {"wire": "fp8"}, A100, "fp8 on its way"),
        ({}, {}, A100, None),
        ({}, {"wire": "fp8"}, H100, None),
        ({}, {"wire": "fp8"}, MI300X, None),
        ({}, {"dtype": "fp8", "scales": "block", **FP8}, H100, None),
        ({"block_k": 256}, {"dtype": "fp8", "scales": "block", **FP8}, H100, "scales by blocks"),
        ({"block_k": 256}, {"dtype": "fp8", "scales": "row", **FP8}, H100, None),
    ]]
    # fmt: on
