"""GEMM + all-reduce + residual + RMSNorm is right in every mode: under the interpreter, and on all GPUs there are."""

from __future__ import annotations

from typing import Any

import pytest
from every_mode import check_all, few, on_cpu, ranks_a_gpu, variants, whole

from autotune.machine import machine
from autotune.workloads import workload

WORKLOAD = workload("gemm_all_reduce_norm")
MODES = {"bsp", "library_collective", "custom_collective", "one_shot", "two_shot"}

NUMBERS = {"group_m": 2, "num_stages": 2, "programs_per_unit": 1, "num_warps": 4}
INTERPRETED = [
    {**NUMBERS, "block_m": 16, "block_n": 32, "block_k": 32, "split_k": 2, "norm_rows": 1, "norm_warps": 1,
     "senders": 0},
    {**NUMBERS, "block_m": 16, "block_n": 64, "block_k": 32, "split_k": 1, "norm_rows": 2, "norm_warps": 2,
     "senders": 2},
]  # fmt: skip
FP8 = {"dtype": "fp8", "scales": "row", "b_order": "nk"}


def problem_of(world_size: int, sizes: dict[str, Any]) -> Any:
    """A problem whose k is ``sizes``' times the ranks."""
    return WORKLOAD.problem_type(world_size=world_size, **{**sizes, "k": sizes["k"] * world_size})


@pytest.mark.parametrize(
    ("world_size", "sizes", "count"),
    [
        (2, {"m": 17, "n": 24, "k": 40, "bias": True, "b_order": "nk", "eps": 1e-2}, 5),
        (3, {"m": 5, "n": 24, "k": 24, "dtype": "fp32"}, 3),
        (2, {"m": 4, "n": 96, "k": 64, **FP8}, 3),
        (2, {"m": 5, "n": 128, "k": 40, "quantised": "block"}, 2),
        (1, {"m": 3, "n": 128, "k": 64, "deterministic": True}, 2),
        whole(2, {"m": 5, "n": 72, "k": 40, "bias": True, "b_order": "nk", "eps": 1e-2}, 16),
        whole(3, {"m": 17, "n": 40, "k": 40, "dtype": "fp32"}, 6),
    ],
    ids=["odd", "three ranks", "fp8", "to fp8", "one rank", "more of odd", "more of three ranks"],
)
def test_every_mode_is_right_under_the_interpreter(world_size: int, sizes: dict[str, Any], count: int) -> None:
    here = on_cpu()
    problem = problem_of(world_size, sizes)
    check_all(WORKLOAD, problem, few(problem, variants(WORKLOAD, problem, here, INTERPRETED), count), MODES)


OF_NORM = {"norm_rows": 1, "norm_warps": 16, "senders": 4}
ON_GPUS = [
    {**NUMBERS, **OF_NORM, "block_m": 16, "block_n": 64, "block_k": 128, "split_k": 4, "num_stages": 4},
    {**NUMBERS, **OF_NORM, "block_m": 64, "block_n": 64, "block_k": 64, "split_k": 1, "senders": 0},
]


@ranks_a_gpu
@pytest.mark.parametrize(
    "sizes",
    [
        {"m": 16, "n": 8192, "k": 8192},
        {"m": 1, "n": 5120, "k": 2880, "dtype": "fp16", "bias": True},
        {"m": 64, "n": 8192, "k": 8192, **FP8},
        {"m": 200, "n": 4096, "k": 1024, "dtype": "fp32"},
    ],
    ids=lambda sizes: f"m={sizes['m']}-{sizes.get('dtype', 'bf16')}",
)
def test_every_mode_is_right_on_gpus(ranks: int, sizes: dict[str, Any]) -> None:
    here = machine()
    problem = problem_of(here.gpus * ranks, sizes)
    check_all(WORKLOAD, problem, few(problem, variants(WORKLOAD, problem, here, ON_GPUS), 24), MODES)
