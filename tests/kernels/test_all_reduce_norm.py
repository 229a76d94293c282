"""All-reduce + residual + RMSNorm is right in every mode: under the interpreter, and on all GPUs there are."""

from __future__ import annotations

from typing import Any

import pytest
from every_mode import check_all, few, on_cpu, ranks_a_gpu, variants, whole

from autotune.machine import machine
from autotune.workloads import workload

WORKLOAD = workload("all_reduce_norm")
MODES = {"bsp", "library_collective", "one_shot", "two_shot"}

BLOCKS = [
    {"norm_rows": 1, "norm_warps": 1, "senders": 0},
    {"norm_rows": 2, "norm_warps": 4, "senders": 2},
    {"norm_rows": 4, "norm_warps": 2, "senders": 0},
    {"norm_rows": 1, "norm_warps": 2, "senders": 4},
    {"norm_rows": 1, "norm_warps": 32, "senders": 1},
]


@pytest.mark.parametrize(
    ("world_size", "sizes", "count"),
    [
        (1, {"m": 3, "n": 64, "dtype": "fp16"}, 2),
        (2, {"m": 5, "n": 520}, 4),
        (3, {"m": 4, "n": 264, "dtype": "fp32", "eps": 1e-2}, 4),
        (2, {"m": 3, "n": 64, "in_place": True}, 2),
        (4, {"m": 1, "n": 1024, "dtype": "fp16"}, 4),
        (3, {"m": 2, "n": 16384}, 4),  # polled in turns, see primitives/all_reduce.py
        (2, {"m": 5, "n": 384, "quantised": "block"}, 4),
        (2, {"m": 3, "n": 520, "dtype": "fp32", "quantised": "row"}, 2),
        whole(2, {"m": 5, "n": 520}, 12),
        whole(5, {"m": 1, "n": 8192}, 4),  # two at a time, the last one without a partner
        whole(3, {"m": 7, "n": 264, "dtype": "fp32", "eps": 1e-2}, 8),
    ],
)
def test_every_mode_is_right_under_the_interpreter(world_size: int, sizes: dict[str, Any], count: int) -> None:
    here = on_cpu()
    problem = WORKLOAD.problem_type(world_size=world_size, **sizes)
    check_all(WORKLOAD, problem, few(problem, variants(WORKLOAD, problem, here, BLOCKS), count), MODES)


GPU_BLOCKS = [
    {"norm_rows": 1, "norm_warps": 8, "senders": 0},
    {"norm_rows": 1, "norm_warps": 16, "senders": 4},
    {"norm_rows": 2, "norm_warps": 16, "senders": 1},
    {"norm_rows": 1, "norm_warps": 4, "senders": 8},
]


@ranks_a_gpu
@pytest.mark.parametrize(
    "sizes",
    [
        {"m": 16, "n": 8192},
        {"m": 1, "n": 5120, "dtype": "fp16"},
        {"m": 300, "n": 4096, "dtype": "fp32"},
        {"m": 17, "n": 7168, "quantised": "block"},
        {"m": 64, "n": 4096, "quantised": "row"},
    ],
    ids=lambda sizes: f"m={sizes['m']}",
)
def test_every_mode_is_right_on_gpus(ranks: int, sizes: dict[str, Any]) -> None:
    here = machine()
    problem = WORKLOAD.problem_type(world_size=here.gpus * ranks, **sizes)
    check_all(WORKLOAD, problem, few(problem, variants(WORKLOAD, problem, here, GPU_BLOCKS), 24), MODES)
