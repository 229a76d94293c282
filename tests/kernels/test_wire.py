"""Parts of a sum over ranks that travel in fp8: right under the interpreter and on GPUs, and compiled for others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compile_worker import Compilers
from every_mode import EveryModeTests, whole
from fakes import EIGHT_GPUS
from gather_tiles import SMALL

from autotune.dtypes import DTYPES
from autotune.kernels.gemm.problem import WIRES
from autotune.kernels.launching.gemm import wire_dtype
from autotune.machine import INTERPRETED, MI300X, Machine
from autotune.task import Task
from autotune.workloads import workload

MODES = {
    "gemm_reduce_scatter": {"bsp", "push", "pull", "custom_collective", "copy_engine"},
    "gemm_all_reduce": {"bsp", "custom_collective", "one_shot", "two_shot"},
}
KERNELS = {"push", "pull", "one_shot", "two_shot"}
GPU_TILE = {
    "block_m": 128, "block_n": 128, "block_k": 64, "group_m": 8, "num_warps": 8, "num_stages": 4, "transfer_rows": 128,
    "gemm_streams": 2, "split_k": 1, "transfer_tiles": 2, "sum_block": 4096, "sum_warps": 8, "programs_per_unit": 1,
}  # fmt: skip
FP8 = {"dtype": "fp8", "b_order": "nk", "scales": "row"}


class TestWire(EveryModeTests):
    steps = [{**SMALL, "transfer_tiles": 2}]
    gpu_steps = [GPU_TILE, {**GPU_TILE, "transfer_rows": 1024}]  # chunks, and all rows at once
    gpu_count = 6
    small = [
        (2, {"name": "gemm_reduce_scatter", "m": 44, "n": 80, "k": 80, "bias": True, "residual": True}, 1),
        (2, {"name": "gemm_all_reduce", "m": 9, "n": 48, "k": 64, **FP8}, 1),
        whole(2, {"name": "gemm_reduce_scatter", "m": 44, "n": 80, "k": 160, "bias": True, "residual": True}, 1),
        whole(3, {"name": "gemm_reduce_scatter", "m": 48, "n": 64, "k": 96, **FP8}, 1),
        whole(2, {"name": "gemm_all_reduce", "m": 9, "n": 80, "k": 160, "bias": True}, 1),
    ]
    large = [
        {"name": name, **fields}
        for name in MODES
        for fields in ({"m": 1024, "n": 2048, "k": 4096}, {"m": 520, "n": 400, "k": 1024, "bias": True})
    ]

    def problem(self, *, name: str, world_size: int, **sizes: Any) -> Any:
        return workload(name).problem_type(world_size=world_size, wire="fp8", **sizes)

    def modes_of(self, problem: Any, here: Machine) -> set[str]:
        return MODES[problem.workload]


@pytest.mark.parametrize("name", MODES)
def test_it_is_a_problem_of_its_own_with_a_tolerance_of_its_own(name: str) -> None:
    found = workload(name)
    fields = {"m": 512, "n": 1024, "k": 2048, "world_size": 2}
    exact, fp8 = (found.problem_type(**fields, wire=wire) for wire in WIRES)
    assert exact.to_json() != fp8.to_json()
    for mode in MODES[name] - {"custom_collective", "copy_engine"}:
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
    for name in MODES:
        found = workload(name)
        problem = found.problem_type(m=512, n=1024, k=2048, world_size=2, wire="fp8")
        tile = {"block_m": 16, "block_n": 32, "block_k": 32, "num_stages": 2}
        config = found.default_config(Task(problem, here)).replace(**tile)
        ours = [mode for mode in found.space.modes if mode in KERNELS]
        jobs += [(problem, config.replace(mode=mode)) for mode in (ours if here is EIGHT_GPUS else ours[:1])]
    for config, kernels in compilers.compiled(here, jobs):
        assert all(kernel.shared_memory <= here.shared_memory for kernel in kernels), config
