"""The dispatch is right in every mode: under the interpreter, and on all GPUs there are.

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

WORKLOAD = workload("moe_dispatch")
MODES = {"bsp", "push", "pull"}

STEPS = [
    {"comm_programs": 2, "transfer_tokens": 2, "split": 1, "copy_kib": 1, "layout_rows": 4, "num_warps": 4},
    {"comm_programs": 1, "transfer_tokens": 4, "split": 2, "copy_kib": 1, "layout_rows": 1, "num_warps": 4},
    {"comm_programs": 1, "transfer_tokens": 1, "split": 1, "copy_kib": 2, "layout_rows": 2, "num_warps": 8},
]


def check(problem: Any, here: Machine, steps: list[dict[str, int]], count: int) -> None:
    check_all(WORKLOAD, problem, few(problem, variants(WORKLOAD, problem, here, steps), count), MODES)


@pytest.mark.parametrize(
    ("world_size", "sizes", "count"),
    [
        (1, {"tokens": 5, "hidden": 72, "experts": 3, "top_k": 2, "dtype": "fp32"}, 3),
        (2, {"tokens": 7, "hidden": 136, "experts": 8, "top_k": 3, "routing": "zipf", "exponent": 1.0}, 4),
        (3, {"tokens": 4, "hidden": 72, "experts": 3, "top_k": 1, "dtype": "fp16"}, 3),
        (4, {"tokens": 1, "hidden": 64, "experts": 8, "top_k": 4}, 3),
        (2, {"tokens": 7, "hidden": 256, "experts": 4, "top_k": 2, "dtype": "fp8", "scales": "block"}, 3),
        whole(2, {"tokens": 7, "hidden": 136, "experts": 8, "top_k": 3, "routing": "zipf", "exponent": 1.0}, 12),
        whole(2, {"tokens": 9, "hidden": 80, "experts": 8, "top_k": 3, "dtype": "fp8", "scales": "row"}, 6),
        whole(3, {"tokens": 5, "hidden": 384, "experts": 3, "top_k": 1, "dtype": "fp8", "scales": "block"}, 6),
        whole(2, {"tokens": 9, "hidden": 64, "experts": 8, "top_k": 8, "dtype": "fp32"}, 3),
        whole(3, {"tokens": 4, "hidden": 200, "experts": 3, "top_k": 1, "dtype": "fp16"}, 3),
        whole(4, {"tokens": 1, "hidden": 128, "experts": 16, "top_k": 4}, 3),
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
        **routing,
    )  # fmt: skip


@pytest.mark.slow
def test_random_problems_are_right_under_the_interpreter() -> None:
    here, rng = on_cpu(), random.Random(21)
    for _ in range(60):
        check(drawn_problem(rng, rng.choice([2, 2, 2, 3, 4]), [64, 72, 256]), here, STEPS, 3)


GPU_STEPS = [
    {"comm_programs": 16, "transfer_tokens": 1, "split": 4, "copy_kib": 2, "layout_rows": 1, "num_warps": 8},
    {"comm_programs": 32, "transfer_tokens": 8, "split": 1, "copy_kib": 16, "layout_rows": 4, "num_warps": 8},
    {"comm_programs": 8, "transfer_tokens": 16, "split": 2, "copy_kib": 8, "layout_rows": 2, "num_warps": 16},
    {"comm_programs": 1, "transfer_tokens": 1, "split": 1, "copy_kib": 4, "layout_rows": 1, "num_warps": 4},
]


@pytest.mark.gpu(2)
@ranks_a_gpu
@pytest.mark.parametrize(
    "sizes",
    [
        {"tokens": 1, "hidden": 7168, "experts": 64, "top_k": 8},
        {"tokens": 128, "hidden": 7168, "experts": 64, "top_k": 8, "routing": "zipf", "exponent": 1.0},
        {"tokens": 1000, "hidden": 2048, "experts": 8, "top_k": 2, "dtype": "fp16"},
        {"tokens": 333, "hidden": 2888, "experts": 16, "top_k": 1, "dtype": "fp32"},
        {"tokens": 2, "hidden": 7168, "experts": 64, "top_k": 8, "dtype": "fp8", "scales": "row"},
        {"tokens": 500, "hidden": 2048, "experts": 16, "top_k": 4, "dtype": "fp8", "scales": "block"},
    ],
    ids=lambda sizes: f"tokens={sizes['tokens']}",
)
def test_every_mode_is_right_on_gpus(ranks: int, sizes: dict[str, Any]) -> None:
    here = machine()
    check(WORKLOAD.problem_type(world_size=here.gpus * ranks, **sizes), here, GPU_STEPS, 12)


@pytest.mark.gpu(2)
@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_random_problems_are_right_on_gpus(count: int) -> None:
    here, rng = machine(), random.Random(22)
    for _ in range(count):
        check(drawn_problem(rng, here.gpus, [64, 72, 2048, 7168]), here, [*STEPS, *GPU_STEPS], 3)
