"""GEMMs of fp8 with scales are right in every mode: under the interpreter, and on all GPUs there are."""

from __future__ import annotations

from typing import Any

import pytest
from every_mode import check_all, few, on_cpu, ranks_a_gpu, variants, whole
from gather_tiles import SMALL, WIDER

from autotune.machine import machine
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


@pytest.mark.parametrize(
    ("name", "ranks", "fields"),
    [
        ("all_gather_gemm", 2, {"m": 22, "n": 64, "k": 80, "scales": "row", "bias": True, "out_dtype": "fp16"}),
        ("all_gather_gemm", 3, {"m": 9, "n": 240, "k": 384, "scales": "block", "layout": "k"}),
        whole("all_gather_gemm", 3, {"m": 9, "n": 240, "k": 768, "scales": "block", "layout": "k"}),
        ("gemm_reduce_scatter", 2, {"m": 22, "n": 48, "k": 96, "scales": "row", "bias": True, "residual": True}),
        ("gemm_reduce_scatter", 2, {"m": 22, "n": 160, "k": 256, "scales": "block"}),
        ("gemm_all_reduce", 2, {"m": 9, "n": 48, "k": 64, "scales": "tensor", "dtype": "fp8_e5m2"}),
        ("gemm_all_reduce", 2, {"m": 9, "n": 160, "k": 256, "scales": "block", **ONE_ORDER}),
        whole("all_gather_gemm", 2, {"m": 64, "n": 64, "k": 128, "scales": "row", "bias": True}),
        whole("all_gather_gemm", 2, {"m": 9, "n": 64, "k": 160, "scales": "row", "layout": "k", "out_dtype": "fp32"}),
        whole("all_gather_gemm", 2, {"m": 32, "n": 64, "k": 64, "scales": "tensor", "dtype": "fp8_e5m2"}),
        whole("all_gather_gemm", 2, {"m": 22, "n": 160, "k": 256, "scales": "block", "bias": True}),
        whole("gemm_reduce_scatter", 2, {"m": 64, "n": 64, "k": 128, "scales": "tensor", "out_dtype": "fp32"}),
        whole("gemm_reduce_scatter", 2, {"m": 44, "n": 160, "k": 512, "scales": "block"}),
        whole("gemm_all_reduce", 2, {"m": 9, "n": 80, "k": 160, "scales": "row", "bias": True}),
        whole("gemm_all_reduce", 2, {"m": 16, "n": 64, "k": 128, "scales": "tensor", "out_dtype": "fp16"}),
        whole("gemm_all_reduce", 2, {"m": 9, "n": 160, "k": 512, "scales": "block", **ONE_ORDER}),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else str(value),
)
def test_every_mode_is_right_under_the_interpreter(name: str, ranks: int, fields: dict[str, Any]) -> None:
    here, found = on_cpu(), workload(name)
    problem = found.problem_type(world_size=ranks, **{**FP8, **fields})
    # Tiles as large as the blocks, or with two steps in each.
    tiles = [{**t, "block_n": 128, "block_k": 2 * t["block_k"]} for t in TILES] if problem.scales == "block" else TILES
    configs = few(problem, variants(found, problem, here, tiles), 1)
    check_all(found, problem, configs, MODES[name])


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


@ranks_a_gpu
@pytest.mark.parametrize("scales", ["tensor", "row", "block"])
@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize(
    "fields",
    [
        {"m": 16, "n": 7168, "k": 8192},
        {"m": 1024, "n": 1536, "k": 2048, "bias": True},
        {"m": 544, "n": 400, "k": 1024, "out_dtype": "fp16"},  # shards of multiples of 4 rows on 2 to 8 ranks
        {"m": 64, "n": 512, "k": 4096, "out_dtype": "fp32"},
        {"m": 256, "n": 512, "k": 8192, "fast_accum": True},
        {"m": 256, "n": 512, "k": 1024, "dtype": "fp8_e5m2"},
    ],
    ids=lambda fields: "-".join(map(str, fields.values())),
)
def test_every_mode_is_right_on_gpus(ranks: int, name: str, scales: str, fields: dict[str, Any]) -> None:
    here, found = machine(), workload(name)
    if fields.get("fast_accum") and scales == "block":
        pytest.skip("scales by blocks are promoted at each step")
    world_size = ranks * here.gpus
    across = "n" if name == "all_gather_gemm" else "k"
    sizes = {across: fields[across] * world_size}
    problem = found.problem_type(world_size=world_size, scales=scales, **{**FP8, **fields, **sizes})
    tiles = [tile for tile in GPU_TILES if tile["block_m"] <= max(16, problem.m)]
    check_all(found, problem, few(problem, variants(found, problem, here, tiles), 12), MODES[name])
