"""GEMMs of fp8 with scales, and sums whose parts travel in fp8, are right in every mode: see ``every_mode``."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from compile_worker import Compilers
from every_mode import EveryModeTests, check_all, on_cpu, whole
from fakes import EIGHT_GPUS
from gather_tiles import SMALL, WIDER

from autotune.dtypes import DTYPES
from autotune.kernels.gemm.problem import WIRES
from autotune.kernels.launching.gemm import wire_dtype
from autotune.machine import INTERPRETED, MI300X, Machine
from autotune.task import Task
from autotune.workloads import workload

GATHER, SCATTER, REDUCE = ({"name": name} for name in ("all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce"))
MODES = {
    "all_gather_gemm": {"bsp", "pull", "pull_staged", "push", "custom_collective"},
    "gemm_reduce_scatter": {"bsp", "push", "pull", "custom_collective", "copy_engine"},
    "gemm_all_reduce": {"bsp", "one_shot", "two_shot"},
}
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
    steps = TILES
    gpu_steps = GPU_TILES
    gpu_count = 12
    small = [
        (2, {**GATHER, "m": 22, "n": 32, "k": 80, "scales": "row", "bias": True, "out_dtype": "fp16"}, 1),
        (3, {**GATHER, "m": 9, "n": 80, "k": 384, "scales": "block", "layout": "k"}, 1),
        whole(3, {**GATHER, "m": 9, "n": 80, "k": 768, "scales": "block", "layout": "k"}, 1),
        (2, {**SCATTER, "m": 22, "n": 48, "k": 48, "scales": "row", "bias": True, "residual": True}, 1),
        (2, {**SCATTER, "m": 22, "n": 160, "k": 128, "scales": "block"}, 1),
        (2, {**REDUCE, "m": 9, "n": 48, "k": 32, "scales": "tensor", "dtype": "fp8_e5m2"}, 1),
        (2, {**REDUCE, "m": 9, "n": 160, "k": 128, "scales": "block", **ONE_ORDER}, 1),
        whole(2, {**GATHER, "m": 64, "n": 32, "k": 128, "scales": "row", "bias": True}, 1),
        whole(2, {**GATHER, "m": 9, "n": 32, "k": 160, "scales": "row", "layout": "k", "out_dtype": "fp32"}, 1),
        whole(2, {**GATHER, "m": 32, "n": 32, "k": 64, "scales": "tensor", "dtype": "fp8_e5m2"}, 1),
        whole(2, {**GATHER, "m": 22, "n": 80, "k": 256, "scales": "block", "bias": True}, 1),
        whole(2, {**SCATTER, "m": 64, "n": 64, "k": 64, "scales": "tensor", "out_dtype": "fp32"}, 1),
        whole(2, {**SCATTER, "m": 44, "n": 160, "k": 256, "scales": "block"}, 1),
        whole(2, {**REDUCE, "m": 9, "n": 80, "k": 80, "scales": "row", "bias": True}, 1),
        whole(2, {**REDUCE, "m": 16, "n": 64, "k": 64, "scales": "tensor", "out_dtype": "fp16"}, 1),
        whole(2, {**REDUCE, "m": 9, "n": 160, "k": 256, "scales": "block", **ONE_ORDER}, 1),
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


SUMS = {
    "gemm_reduce_scatter": {"bsp", "push", "pull", "custom_collective", "copy_engine"},
    "gemm_all_reduce": {"bsp", "custom_collective", "one_shot", "two_shot"},
}
KERNELS = {"push", "pull", "one_shot", "two_shot"}
GPU_TILE = {
    "block_m": 128, "block_n": 128, "block_k": 64, "group_m": 8, "num_warps": 8, "num_stages": 4, "transfer_rows": 128,
    "gemm_streams": 2, "split_k": 1, "transfer_tiles": 2, "sum_block": 4096, "sum_warps": 8, "programs_per_unit": 1,
}  # fmt: skip
ROWS = {**FP8, "scales": "row"}


class TestWire(EveryModeTests):
    steps = [{**SMALL, "transfer_tiles": 2}]
    gpu_steps = [GPU_TILE, {**GPU_TILE, "transfer_rows": 1024}]  # chunks, and all rows at once
    gpu_count = 6
    small = [
        (2, {"name": "gemm_reduce_scatter", "m": 44, "n": 80, "k": 80, "bias": True, "residual": True}, 1),
        (2, {"name": "gemm_all_reduce", "m": 9, "n": 48, "k": 64, **ROWS}, 1),
        whole(2, {"name": "gemm_reduce_scatter", "m": 44, "n": 80, "k": 160, "bias": True, "residual": True}, 1),
        whole(3, {"name": "gemm_reduce_scatter", "m": 48, "n": 64, "k": 96, **ROWS}, 1),
        whole(2, {"name": "gemm_all_reduce", "m": 9, "n": 80, "k": 160, "bias": True}, 1),
    ]
    large = [
        {"name": name, **fields}
        for name in SUMS
        for fields in ({"m": 1024, "n": 2048, "k": 4096}, {"m": 520, "n": 400, "k": 1024, "bias": True})
    ]

    def problem(self, *, name: str, world_size: int, **sizes: Any) -> Any:
        return workload(name).problem_type(world_size=world_size, wire="fp8", **sizes)

    def modes_of(self, problem: Any, here: Machine) -> set[str]:
        return SUMS[problem.workload]


@pytest.mark.parametrize("name", SUMS)
def test_it_is_a_problem_of_its_own_with_a_tolerance_of_its_own(name: str) -> None:
    found = workload(name)
    fields = {"m": 512, "n": 1024, "k": 2048, "world_size": 2}
    exact, fp8 = (found.problem_type(**fields, wire=wire) for wire in WIRES)
    assert exact.to_json() != fp8.to_json()
    for mode in SUMS[name] - {"custom_collective", "copy_engine"}:
        tried = (*found.first_configs(Task(exact, EIGHT_GPUS)), *found.baselines(Task(exact, EIGHT_GPUS)).values())
        config = next(each for each in tried if each["mode"] == mode)
        allowed, wider = (found.tolerance_of(Task(each, EIGHT_GPUS), config) for each in (exact, fp8))
        if mode in KERNELS:
            assert allowed.overall < DTYPES["bf16"].rounded_once[0] * 2 and 0.03 < wider.overall < 0.045
            assert allowed.element < wider.element
        else:
            assert allowed == wider, "the library sends what it always sends"


def test_the_type_is_that_of_the_machine() -> None:
    found = workload("gemm_reduce_scatter")
    problem = found.problem_type(m=512, n=1024, k=2048, world_size=2, wire="fp8")
    assert wire_dtype(Task(problem, EIGHT_GPUS)) == wire_dtype(Task(problem, INTERPRETED)) == torch.float8_e4m3fn
    assert wire_dtype(Task(problem, MI300X)) == torch.float8_e4m3fnuz


@pytest.mark.parametrize("here", [EIGHT_GPUS, whole(MI300X)], ids=lambda here: here.arch)
def test_kernels_compile(here: Machine, compilers: Compilers) -> None:
    jobs = []
    for name in SUMS:
        found = workload(name)
        problem = found.problem_type(m=512, n=1024, k=2048, world_size=2, wire="fp8")
        tile = {"block_m": 16, "block_n": 32, "block_k": 32, "num_stages": 2}
        config = found.default_config(Task(problem, here)).replace(**tile)
        ours = [mode for mode in found.space.modes if mode in KERNELS & SUMS[name]]
        jobs += [(problem, config.replace(mode=mode)) for mode in (ours if here is EIGHT_GPUS else ours[:1])]
    for config, kernels in compilers.compiled(here, jobs):
        assert all(kernel.shared_memory <= here.shared_memory for kernel in kernels), config


BLOCKS, GATED = {"scales": "block", "k": 256}, {"epilogue": "swiglu"}
IN_PARTS = {"block_m": 128, "block_n": 128, "loads": "tma"}


@pytest.mark.parametrize(
    ("fields", "tile"),
    [
        ({**BLOCKS, "n": 320}, {"block_n": 256}),  # two blocks; then one, and none behind it
        ({**BLOCKS, **GATED, "n": 640}, {"block_n": 256}),  # up begins within a block, and goes on in the next
        ({**BLOCKS, **GATED, "n": 96}, {"block_n": 64}),
        ({"scales": "row", "n": 96, "k": 256}, {"block_m": 64}),  # a step starts from zero
        ({"scales": "row", "n": 192, "k": 256, "m": 200}, IN_PARTS), ({**BLOCKS, "n": 192, "m": 200}, IN_PARTS),
    ],
)  # fmt: skip
def test_tiles_find_the_scales_of_their_rows_columns_and_blocks(fields: dict[str, Any], tile: dict[str, Any]) -> None:
    found = workload("all_gather_gemm")
    problem = found.problem_type(**{"m": 80, **FP8, **fields, "n": 2 * fields["n"]}, world_size=2)
    first = {config["mode"]: config for config in reversed(found.first_configs(Task(problem, on_cpu())))}
    configs = [first[mode].replace(num_warps=4, block_k=128, **tile) for mode in ("push", "pull")]
    check_all(found, problem, configs, {"push", "pull"})
