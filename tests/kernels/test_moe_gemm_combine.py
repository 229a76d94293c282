"""Grouped GEMM + combine is right in every mode: under the interpreter, and on all GPUs there are.

Each check calls it with a plain routing, with one that leaves out a rank's tokens and single ids, and with one that
sends every token to one expert.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from every_mode import check_all, few, on_cpu, ranks_a_gpu, variants, whole

from autotune.machine import Machine, machine
from autotune.workloads import workload

WORKLOAD = workload("moe_gemm_combine")
MODES = {"bsp", "own_collective", "push", "pull", "one_shot"}

TILE = {
    "block_m": 16, "block_n": 32, "block_k": 32, "group_m": 2, "num_warps": 4, "num_stages": 2, "sum_warps": 4,
}  # fmt: skip
STEPS = [
    {**TILE, "comm_programs": 2, "transfer_tokens": 2, "split": 1, "copy_kib": 1, "column_groups": 2,
     "programs_per_unit": 1},
    {**TILE, "comm_programs": 1, "transfer_tokens": 4, "split": 2, "copy_kib": 1, "column_groups": 1,
     "programs_per_unit": 2},
    {**TILE, "comm_programs": 2, "transfer_tokens": 1, "split": 1, "copy_kib": 1, "column_groups": 4,
     "programs_per_unit": 1},
    {**TILE, "comm_programs": 1, "transfer_tokens": 1, "split": 1, "copy_kib": 1, "column_groups": 1,
     "programs_per_unit": 1},
]  # fmt: skip


FP8 = {"dtype": "fp8", "b_order": "nk"}


def check(problem: Any, here: Machine, steps: list[dict[str, int]], count: int) -> None:
    grouped = here.is_interpreter or problem.dtype == "bf16" or problem.scaled
    modes = MODES if grouped else MODES - {"own_collective"}  # the library has no such GEMM on GPUs
    check_all(WORKLOAD, problem, few(problem, variants(WORKLOAD, problem, here, steps), count), modes)


@pytest.mark.parametrize(
    ("world_size", "sizes", "count"),
    [
        (2, {"tokens": 5, "hidden": 72, "experts": 4, "top_k": 3, "width": 40, "b_order": "kn", "dtype": "fp32"}, 4),
        (3, {"tokens": 2, "hidden": 72, "experts": 3, "top_k": 1, "width": 32, "dtype": "fp16"}, 4),
        (4, {"tokens": 1, "hidden": 64, "experts": 8, "top_k": 4, "width": 40, "deterministic": True}, 4),
        (2, {"tokens": 5, "hidden": 144, "experts": 4, "top_k": 2, "width": 256, **FP8, "scales": "block"}, 4),
        whole(1, {"tokens": 5, "hidden": 72, "experts": 3, "top_k": 2, "width": 40}, 4),
        whole(2, {"tokens": 5, "hidden": 136, "experts": 4, "top_k": 3, "width": 40, "b_order": "kn"}, 4),
        whole(2, {"tokens": 5, "hidden": 64, "experts": 8, "top_k": 8, "width": 40, "dtype": "fp32"}, 4),
        whole(4, {"tokens": 1, "hidden": 64, "experts": 16, "top_k": 4, "width": 40, "deterministic": True}, 4),
    ],
)
def test_every_mode_is_right_under_the_interpreter(world_size: int, sizes: dict[str, Any], count: int) -> None:
    here = on_cpu()
    check(WORKLOAD.problem_type(world_size=world_size, **sizes), here, STEPS, count)


def drawn_problem(rng: random.Random, world_size: int, hidden: list[int]) -> Any:
    local = rng.choice([1, 2, 5, 16])
    routing = rng.choice([{"routing": "uniform"}, {"routing": "zipf", "exponent": 1.2}])
    return WORKLOAD.problem_type(
        tokens=rng.choice([1, 3, 8, 17, 40]), hidden=rng.choice(hidden), experts=local * world_size,
        top_k=rng.randint(1, min(8, local * world_size)), dtype=rng.choice(["bf16", "fp32"]), world_size=world_size,
        width=rng.choice([32, 72, 128]), b_order=rng.choice(["kn", "nk"]),
        deterministic=rng.random() < 0.5, **routing,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("scales", ["row", "block"])
def test_fp8_is_right_in_every_form(world_size: int, scales: str) -> None:
    problem = WORKLOAD.problem_type(
        tokens=19, hidden=208, experts=2 * world_size, top_k=2, width=256, scales=scales, **FP8, world_size=world_size
    )
    check(problem, on_cpu(), [{**step, "block_k": 128} for step in STEPS], 8)


@pytest.mark.slow
def test_random_problems_are_right_under_the_interpreter() -> None:
    here, rng = on_cpu(), random.Random(21)
    for _ in range(60):
        check(drawn_problem(rng, rng.choice([2, 2, 2, 3, 4]), [64, 72, 256]), here, STEPS, 4)


FEW = {"sum_warps": 8, "block_m": 16, "block_n": 128, "block_k": 128, "group_m": 1, "num_warps": 4, "num_stages": 4}
MANY = {"sum_warps": 8, "block_m": 128, "block_n": 128, "block_k": 64, "group_m": 8, "num_warps": 8, "num_stages": 3}
GPU_STEPS = [
    {**FEW, "comm_programs": 16, "transfer_tokens": 1, "split": 4, "copy_kib": 2, "column_groups": 1,
     "programs_per_unit": 2},
    {**MANY, "comm_programs": 16, "transfer_tokens": 8, "split": 1, "copy_kib": 16, "column_groups": 4,
     "programs_per_unit": 1},
    {**MANY, "comm_programs": 32, "transfer_tokens": 4, "split": 2, "copy_kib": 8, "column_groups": 8,
     "programs_per_unit": 1},
    {**FEW, "comm_programs": 2, "transfer_tokens": 1, "split": 1, "copy_kib": 4, "column_groups": 2,
     "programs_per_unit": 1},
    {**TILE, "comm_programs": 1, "transfer_tokens": 1, "split": 1, "copy_kib": 1, "column_groups": 1,
     "programs_per_unit": 1},
]  # fmt: skip


@pytest.mark.gpu(2)
@ranks_a_gpu
@pytest.mark.parametrize(
    "sizes",
    [
        {"tokens": 1, "hidden": 7168, "experts": 32, "top_k": 8, "width": 2048},
        {"tokens": 128, "hidden": 7168, "experts": 32, "top_k": 8, "width": 2048, "routing": "zipf", "exponent": 1.0},
        {"tokens": 1000, "hidden": 2048, "experts": 8, "top_k": 2, "width": 1024, "b_order": "kn", "dtype": "fp16"},
        {"tokens": 333, "hidden": 2888, "experts": 16, "top_k": 1, "width": 520, "dtype": "fp32"},
        {"tokens": 1, "hidden": 7168, "experts": 32, "top_k": 8, "width": 2048, **FP8, "scales": "row"},
        {"tokens": 600, "hidden": 2064, "experts": 8, "top_k": 2, "width": 1024, **FP8, "scales": "row"},
        {"tokens": 333, "hidden": 1040, "experts": 16, "top_k": 4, "width": 512, **FP8, "scales": "block"},
    ],
    ids=lambda sizes: f"tokens={sizes['tokens']} {sizes.get('dtype', 'bf16')} {sizes.get('scales', '')}",
)
def test_every_mode_is_right_on_gpus(ranks: int, sizes: dict[str, Any]) -> None:
    here = machine()
    check(WORKLOAD.problem_type(world_size=here.gpus * ranks, **sizes), here, GPU_STEPS, 14)


@pytest.mark.gpu(2)
@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_random_problems_are_right_on_gpus(count: int) -> None:
    here, rng = machine(), random.Random(22)
    for _ in range(count):
        check(drawn_problem(rng, here.gpus, [64, 72, 2048]), here, [*STEPS, *GPU_STEPS], 4)
