"""The combine is right in every mode: see ``mixture``."""

from __future__ import annotations

import random
from typing import Any

import pytest
from compile_worker import DEADLINE, Compilers, assembly
from every_mode import whole
from mixture import MixtureTests, sent

from autotune.config import Config
from autotune.machine import H100
from autotune.task import Task
from autotune.workloads import workload


class TestMoeCombine(MixtureTests):
    name = "moe_combine"
    modes = {"bsp", "push", "pull", "one_shot"}

    steps = [
        {**sent(2, 2, 1, 1), "num_warps": 4},
        {**sent(1, 4, 2, 1), "num_warps": 4},
        {**sent(2, 1, 1, 2), "num_warps": 8},
        {**sent(1, 1, 1, 1), "num_warps": 4},
    ]
    gpu_steps = [
        {**sent(16, 1, 4, 2), "num_warps": 8},
        {**sent(64, 8, 1, 16), "num_warps": 8},
        {**sent(128, 4, 2, 8), "num_warps": 16},
        {**sent(2, 1, 1, 4), "num_warps": 4},
        {**sent(1, 1, 1, 1), "num_warps": 4},
    ]
    small = [
        (1, {"tokens": 5, "hidden": 72, "experts": 3, "top_k": 2, "dtype": "fp32", "deterministic": True}, 4),
        (2, {"tokens": 5, "hidden": 72, "experts": 4, "top_k": 2, "routing": "zipf", "exponent": 1.0}, 4),
        (3, {"tokens": 2, "hidden": 72, "experts": 3, "top_k": 1, "dtype": "fp16"}, {"push", "pull", "one_shot"}),
        (4, {"tokens": 1, "hidden": 64, "experts": 8, "top_k": 2}, {"push", "one_shot"}),
        whole(3, {"tokens": 4, "hidden": 200, "experts": 3, "top_k": 1, "dtype": "fp16"}, 4),
    ]
    large = [
        {"tokens": 1, "hidden": 7168, "experts": 64, "top_k": 8},
        {"tokens": 128, "hidden": 7168, "experts": 64, "top_k": 8, "routing": "zipf", "exponent": 1.0},
        {"tokens": 1000, "hidden": 2048, "experts": 8, "top_k": 2, "dtype": "fp16"},
        {"tokens": 333, "hidden": 2888, "experts": 16, "top_k": 1, "dtype": "fp32", "deterministic": True},
    ]

    def further(self, rng: random.Random, gpu: bool) -> dict[str, Any]:
        return {"deterministic": rng.random() < 0.5}


SUMS = {"peer_order": "rotate", "comm_programs": 16, "transfer_tokens": 1, "split": 2, "copy_kib": 4, "num_warps": 8}
TILE = {
    "block_m": 64, "block_n": 128, "block_k": 64, "group_m": 8, "num_stages": 3, "loads": "tma", "swap_ab": False,
    "programs_per_unit": 1, "column_groups": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("moe_combine", "pull"), ("moe_gemm_combine", "push"),
        whole("moe_combine", "push"), whole("moe_gemm_combine", "pull"),
    ],
)  # fmt: skip
def test_rows_and_sums_are_loaded_by_whole_vectors(name: str, mode: str, compilers: Compilers) -> None:
    """On NVIDIA's GPUs: after a wait the compiler must still know where a step's columns begin."""
    found, fused = workload(name), name == "moe_gemm_combine"
    sizes = {"tokens": 1024, "hidden": 7168, "experts": 256, "top_k": 8, "world_size": 8}
    task = Task(found.problem_type(**sizes, **({"width": 2048} if fused else {})), H100)
    config = Config({"mode": mode, **SUMS, **(TILE if fused else {})})
    found.space.check(config, task)
    (text,) = compilers.submit(H100, assembly, task, config).result(DEADLINE)
    assert "ld.global.b16" not in text and "st.global.b16" not in text
