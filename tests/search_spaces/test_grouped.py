"""The grouped GEMM's tile that is tried unmeasured: by the rows of an expert, the machine, the operands' scales."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.machine import H100, MI300X, Machine
from autotune.task import Task
from autotune.workloads import workload

NAMES = ("block_m", "block_n", "block_k", "num_warps", "num_stages", "programs_per_unit", "swap_ab")
ROWS = {"dtype": "fp8", "scales": "row"}
BLOCKS = {"dtype": "fp8", "scales": "block"}


@pytest.mark.parametrize(
    ("name", "mode", "machine", "tokens", "fields", "tile"),
    [
        # Of 64 experts on 2 ranks, 8 for a token, an expert has as many rows as a rank has tokens, by four.
        ("moe_gemm_combine", "unfused", H100, 8, {}, (16, 128, 128, 4, 4, 2, True)),
        ("moe_gemm_combine", "unfused", H100, 33 * 4, {}, (64, 256, 64, 8, 4, 1, False)),
        ("moe_gemm_combine", "unfused", MI300X, 64 * 4, {}, (128, 128, 64, 8, 2, 1, False)),
        # Up to 96 rows, or where the tensor cores add up: two programs of 64 rows; else a tile in two parts.
        ("moe_gemm_combine", "unfused", H100, 96 * 4, ROWS, (64, 128, 128, 4, 4, 2, False)),
        ("moe_gemm_combine", "unfused", H100, 97 * 4, ROWS, (128, 128, 128, 4, 3, 2, False)),
        ("moe_dispatch_gemm", "unfused", H100, 97 * 4, BLOCKS, (64, 128, 128, 4, 3, 2, False)),
        ("moe_dispatch_gemm", "push", H100, 97 * 4, ROWS, (128, 256, 128, 8, 3, 1, False)),
    ],
)
def test_the_tile_that_is_written_down_unmeasured(
    name: str, mode: str, machine: Machine, tokens: int, fields: dict[str, Any], tile: tuple[object, ...]
) -> None:
    found = workload(name)
    sizes = {"hidden": 7168, "width": 2048, "experts": 64, "top_k": 8, "world_size": 2, "b_order": "nk"}
    problem = found.problem_type(tokens=tokens, **{**sizes, **fields})
    first = next(config for config in found.first_configs(Task(problem, machine)) if config["mode"] == mode)
    assert tuple(first[each] for each in NAMES) == tile


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"gate_up": "halves", "b_order": "kn"}, "TMA of both halves"),
        ({"gate_up": "interleaved", "b_order": "kn"}, None),
        ({"gate_up": "halves", "b_order": "nk"}, None),
    ],
)
def test_tma_loads_a_tile_of_gate_and_up_that_lies_together(fields: dict[str, Any], told: str | None) -> None:
    found = workload("moe_dispatch_gemm")
    problem = found.problem_type(tokens=512, hidden=7168, width=2048, experts=64, top_k=8, world_size=2, **fields)
    task = Task(problem, H100)
    tile = next(config for config in found.first_configs(task) if config["mode"] == "unfused")
    broken = found.space.broken(tile.replace(loads="tma"), task)
    assert (broken.name if broken else None) == told
