"""GEMMs of fp8 with scales are right in every mode: see ``every_mode``."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from every_mode import EveryModeTests, check_all, few, on_cpu, ranks_a_gpu, variants, whole
from gather_tiles import SMALL, WIDER

from autotune.machine import Machine, machine
from autotune.workloads import workload

MODES = {
    "all_gather_gemm": {"bsp", "pull", "pull_staged", "push", "custom_collective"},
    "gemm_reduce_scatter": {"bsp", "push", "pull", "custom_collective", "copy_engine"},
    "gemm_all_reduce": {"bsp", "one_shot", "two_shot"},
}
DECODE_MODES = {"bsp", "iris_all_gather", "fine_grained_wait", "fused"}
FP8 = {"dtype": "fp8", "b_order": "nk"}
ONE_ORDER = {"deterministic": True, "residual": True}

TILES = [SMALL, {**WIDER, "block_k": 64}]

GPU_TILES = [
    {
        "block_m": 128, "block_n": 128, "block_k": 128, "group_m": 8, "num_warps": 4, "num_stages": 3,
        "transfer_rows": 128, "comm_programs": 12, "copy_kib": 16, "head_start": 0, "gemm_streams": 2, "split_k": 1,
        "k_chunks": 2, "transfer_tiles": 2, "sum_block": 4096, "sum_warps": 8, "programs_per_unit": 1,
    },
    {
        "block_m": 64, "block_n": 64, "block_k": 64, "group_m": 4, "num_warps": 4, "num_stages": 4, "transfer_rows": 32,
        "comm_programs": 20, "copy_kib": 4, "head_start": 0, "gemm_streams": 1, "split_k": 2, "k_chunks": 1,
        "transfer_tiles": 1, "sum_block": 1024, "sum_warps": 4, "programs_per_unit": 2,
    },
    {
        "block_m": 16, "block_n": 64, "block_k": 128, "group_m": 1, "num_warps": 4, "num_stages": 4,
        "transfer_rows": 16, "comm_programs": 8, "copy_kib": 8, "head_start": 0, "gemm_streams": 2, "split_k": 4,
        "k_chunks": 1, "transfer_tiles": 1, "sum_block": 1024, "sum_warps": 4, "programs_per_unit": 1,
    },
]  # fmt: skip

LARGE: list[dict[str, Any]] = [
    {"m": 16, "n": 7168, "k": 8192},
    {"m": 1024, "n": 1536, "k": 2048, "bias": True},
    {"m": 544, "n": 400, "k": 1024, "out_dtype": "fp16"},  # shards of multiples of 4 rows on 2 to 8 ranks
    {"m": 64, "n": 512, "k": 4096, "out_dtype": "fp32"},
    {"m": 256, "n": 512, "k": 8192, "fast_accum": True},
    {"m": 256, "n": 512, "k": 1024, "dtype": "fp8_e5m2"},
]


class TestScaled(EveryModeTests):
    """The workloads of ``MODES``."""

    steps = TILES
    gpu_steps = GPU_TILES
    gpu_count = 12
    small = [
        (
            2,
            {"name": "all_gather_gemm", "m": 22, "n": 32, "k": 80, "scales": "row", "bias": True, "out_dtype": "fp16"},
            1,
        ),
        (3, {"name": "all_gather_gemm", "m": 9, "n": 80, "k": 384, "scales": "block", "layout": "k"}, 1),
        whole(3, {"name": "all_gather_gemm", "m": 9, "n": 80, "k": 768, "scales": "block", "layout": "k"}, 1),
        (
            2,
            {"name": "gemm_reduce_scatter", "m": 22, "n": 48, "k": 48, "scales": "row", "bias": True, "residual": True},
            1,
        ),
        (2, {"name": "gemm_reduce_scatter", "m": 22, "n": 160, "k": 128, "scales": "block"}, 1),
        (2, {"name": "gemm_all_reduce", "m": 9, "n": 48, "k": 32, "scales": "tensor", "dtype": "fp8_e5m2"}, 1),
        (2, {"name": "gemm_all_reduce", "m": 9, "n": 160, "k": 128, "scales": "block", **ONE_ORDER}, 1),
        whole(2, {"name": "all_gather_gemm", "m": 64, "n": 32, "k": 128, "scales": "row", "bias": True}, 1),
        whole(
            2,
            {"name": "all_gather_gemm", "m": 9, "n": 32, "k": 160, "scales": "row", "layout": "k", "out_dtype": "fp32"},
            1,
        ),
        whole(2, {"name": "all_gather_gemm", "m": 32, "n": 32, "k": 64, "scales": "tensor", "dtype": "fp8_e5m2"}, 1),
        whole(2, {"name": "all_gather_gemm", "m": 22, "n": 80, "k": 256, "scales": "block", "bias": True}, 1),
        whole(
            2, {"name": "gemm_reduce_scatter", "m": 64, "n": 64, "k": 64, "scales": "tensor", "out_dtype": "fp32"}, 1
        ),
        whole(2, {"name": "gemm_reduce_scatter", "m": 44, "n": 160, "k": 256, "scales": "block"}, 1),
        whole(2, {"name": "gemm_all_reduce", "m": 9, "n": 80, "k": 80, "scales": "row", "bias": True}, 1),
        whole(2, {"name": "gemm_all_reduce", "m": 16, "n": 64, "k": 64, "scales": "tensor", "out_dtype": "fp16"}, 1),
        whole(2, {"name": "gemm_all_reduce", "m": 9, "n": 160, "k": 256, "scales": "block", **ONE_ORDER}, 1),
    ]
    large = [
        {"name": name, "scales": scales, **fields}
        for fields, name, scales in itertools.product(LARGE, MODES, ("tensor", "row", "block"))
        if not (fields.get("fast_accum") and scales == "block")  # those are promoted at each step
    ]

    def problem(self, *, name: str, world_size: int, **sizes: Any) -> Any:
        """The columns of B, or its depth, are times the ranks."""
        across = "n" if name == "all_gather_gemm" else "k"
        sizes = {**FP8, **sizes, across: sizes[across] * world_size}
        return workload(name).problem_type(world_size=world_size, **sizes)

    def steps_of(self, problem: Any, steps: list[dict[str, int]]) -> list[dict[str, int]]:
        """Tiles as large as the blocks, or with two steps in each."""
        if problem.scales == "block" and steps is self.steps:
            return [{**step, "block_n": 128, "block_k": 2 * step["block_k"]} for step in steps]
        return super().steps_of(problem, steps)

    def modes_of(self, problem: Any, here: Machine) -> set[str]:
        return MODES[problem.workload]


SPLITS = [
    {
        "block_n": 16, "programs_per_head": 2, "heads_per_program": 2, "num_warps": 2, "num_stages": 2,
        "transfer_heads": 1, "combine_heads": 1,
    },
]  # fmt: skip


@pytest.mark.parametrize("modes", [{"bsp", "fused"}, whole(DECODE_MODES)], ids=["two modes", "all modes"])
@pytest.mark.parametrize(
    "fields",
    [
        {"batch": 1, "q_heads": 4, "kv_heads": 2, "kv_dtype": "fp8", "kv_scales": "head", "page_size": 16,
         "dtype": "fp16"},
        {"batch": 2, "q_heads": 2, "kv_heads": 1, "kv_dtype": "fp8_e5m2", "kv_scales": "tensor", "soft_cap": 3},
    ],
    ids=["head", "tensor"],
)  # fmt: skip
def test_flash_decode_over_a_scaled_cache_is_right_under_the_interpreter(
    fields: dict[str, Any], modes: set[str]
) -> None:
    """All modes attend by the same function."""
    here, found = on_cpu(), workload("flash_decode")
    problem = found.problem_type(world_size=2, head_dim=64, kv_len=24, **fields)
    configs = [each for each in variants(found, problem, here, SPLITS) if each["mode"] in modes]
    check_all(found, problem, few(problem, configs, 1), modes)


@ranks_a_gpu
@pytest.mark.parametrize("scales", ["head", "tensor"])
@pytest.mark.parametrize("cache", ["fp8", "fp8_e5m2"])
def test_flash_decode_over_a_scaled_cache_is_right_on_gpus(ranks: int, cache: str, scales: str) -> None:
    here, found = machine(), workload("flash_decode")
    problem = found.problem_type(
        world_size=ranks * here.gpus, batch=3, q_heads=96, kv_heads=12, head_dim=128, kv_len=8000, page_size=16,
        kv_dtype=cache, kv_scales=scales,
    )  # fmt: skip
    splits = {**SPLITS[0], "block_n": 64, "programs_per_head": 8, "heads_per_program": 8, "num_warps": 4}
    check_all(found, problem, few(problem, variants(found, problem, here, [splits]), 8), DECODE_MODES)
