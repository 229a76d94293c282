"""GEMM + all-reduce is right in every mode, see ``every_mode``, with the same bits on all ranks, call after call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from every_mode import EveryModeTests, check_all, few, on_cpu, variants, whole
from ranks_of_functions import run_ranks

from autotune.config import Config
from autotune.machine import Machine, machine
from autotune.task import Task
from autotune.workloads import workload

WORKLOAD = workload("gemm_all_reduce")
FUNCTIONS = str(Path(__file__).parent / "all_reduce_on_ranks.py")

ODD = {"m": 11, "n": 40, "k": 144, "bias": True, "b_order": "nk", "residual": True}

SUM = {"sum_block": 512, "sum_warps": 4}
TILES = {"group_m": 2, "num_warps": 4, "num_stages": 2, "programs_per_unit": 1, **SUM}
INTERPRETED_TILES = [
    {**TILES, "block_m": 16, "block_n": 32, "block_k": 32, "split_k": 2},
    {**TILES, "block_m": 16, "block_n": 32, "block_k": 64, "split_k": 1},
    {**TILES, "block_m": 32, "block_n": 64, "block_k": 32, "split_k": 1},
]

ON_GPU = {"group_m": 1, "num_warps": 4, "split_k": 1, "programs_per_unit": 1, "sum_block": 1024, "sum_warps": 4}
GPU_TILES = [
    {**ON_GPU, "block_m": 16, "block_n": 64, "block_k": 128, "num_stages": 4},
    {**ON_GPU, "block_m": 16, "block_n": 32, "block_k": 128, "num_stages": 3, "split_k": 4},
    {**ON_GPU, "block_m": 64, "block_n": 64, "block_k": 64, "num_stages": 4, "split_k": 2, "group_m": 4},
    {**ON_GPU, "block_m": 128, "block_n": 128, "block_k": 64, "num_stages": 3, "group_m": 8, "num_warps": 8},
    {**ON_GPU, "block_m": 16, "block_n": 32, "block_k": 32, "num_stages": 2},
]


class TestGemmAllReduce(EveryModeTests):
    name = "gemm_all_reduce"
    modes = {"bsp", "custom_collective", "one_shot", "two_shot"}
    exchanging = {"custom_collective"}
    gpu_count = 24
    steps = INTERPRETED_TILES
    gpu_steps = GPU_TILES
    small = [
        (1, {**ODD, "k": 72, "dtype": "fp16"}, 2),
        (2, ODD, 4),
        (3, {"m": 1, "n": 24, "k": 120, "dtype": "fp32"}, 2),
        (4, {**ODD, "m": 5, "n": 24, "k": 160}, 2),
        whole(2, {"m": 20, "n": 64, "k": 128}, 3),  # tiles divide the matrix
        whole(2, ODD, 8),
    ]
    large = [
        {"m": 1, "n": 8192, "k": 28672},
        {"m": 16, "n": 8192, "k": 28672},
        {"m": 64, "n": 8192, "k": 8192},
        {"m": 3, "n": 8192, "k": 8192, "dtype": "fp16", "bias": True, "b_order": "nk"},
        {"m": 17, "n": 2880, "k": 2880, "bias": True, "residual": True},
        {"m": 64, "n": 2880, "k": 4096, "deterministic": True},
        {"m": 33, "n": 72, "k": 520, "b_order": "nk"},
        {"m": 100, "n": 37, "k": 104, "bias": True},
        {"m": 1000, "n": 360, "k": 2880, "bias": True},
        {"m": 512, "n": 512, "k": 512, "dtype": "fp32", "bias": True},
        {"m": 5, "n": 136, "k": 264, "dtype": "fp32"},
        {"m": 4096, "n": 8192, "k": 28672},
    ]

    def steps_of(self, problem: Any, steps: list[dict[str, int]]) -> list[dict[str, int]]:
        """With the fewest rows that ``custom_collective`` may take at once: eight chunks at most."""
        most = max(16, 1 << (problem.m - 1).bit_length())
        parts = [rows for rows in (most >> shift for shift in (3, 2, 1)) if rows >= 16 and problem.m % rows == 0]
        chunk = {"transfer_rows": next(iter(parts), most)}
        return [{**step, **chunk} for step in super().steps_of(problem, steps)]

    def modes_of(self, problem: Any, here: Machine) -> set[str]:
        """On GPUs not every size has every mode."""
        return super().modes_of(problem, here) if here.is_interpreter else {"bsp", "two_shot"}


def test_chunks_of_rows_are_right_under_the_interpreter() -> None:
    here = on_cpu()
    problem = WORKLOAD.problem_type(
        **{**ODD, "m": 48, "n": 48, "k": 160, "dtype": "fp8", "scales": "row"}, world_size=2
    )
    chunks = {"mode": "custom_collective", **SUM, "transfer_rows": 16, "exchange": "two_shot"}
    configs = [Config({**chunks, "protocol": protocol}) for protocol in ("signal", "sentinel")]
    assert all(WORKLOAD.space.violation(config, Task(problem, here)) is None for config in configs)
    check_all(WORKLOAD, problem, configs, {"custom_collective"})


def test_persistent_programs_are_right_under_the_interpreter() -> None:
    here = on_cpu()
    problem = WORKLOAD.problem_type(m=145, n=32, k=64, world_size=2)  # more tiles than the interpreter has programs
    tiles = [{**INTERPRETED_TILES[0], "split_k": 1}]
    configs = [c for c in variants(WORKLOAD, problem, here, tiles) if c.get("schedule") == "persistent"]
    configs = [c for c in configs if (c["mode"], c["combine"]) in {("one_shot", "separate"), ("two_shot", "sender")}]
    check_all(WORKLOAD, problem, few(problem, iter(configs), 2), {"one_shot", "two_shot"})


OLD = {
    "signal": 2 * 715827882 - 2,
    **dict.fromkeys(("ll", "two_shot", "two_ll", "two_sentinel", "collective"), (1 << 32) - 2),
    "sentinel": 0,
}
"""Launches after which, with three ranks, the next calls make counters and flags wrap around: 3 * 715827882 + 2 is
2**31, at which an int32 becomes negative; flags, and counters of results in either slot, come there after 2**32."""


each_way = pytest.mark.parametrize("gpu", [False, pytest.param(True, marks=pytest.mark.gpu(2, each=True))])


def on_ranks(function: str, folder: Path, gpu: bool, count: int, argument: Any) -> list[Any]:
    """The ranks' answers: of all GPUs, or of so many interpreted ranks."""
    if not gpu:
        on_cpu()
    return run_ranks(FUNCTIONS, function, machine().gpus if gpu else count, folder, gpu=gpu, argument=argument)


@each_way
def test_all_ranks_get_the_same_bits_in_every_call(tmp_path: Path, gpu: bool) -> None:
    ranks = on_ranks("bits_of_calls", tmp_path, gpu, 3, 3 if gpu else 2)
    for config, bits in ranks[0].items():
        assert all(rank[config] == bits for rank in ranks), config
        assert len(set(bits)) == 1, config


@each_way
def test_calls_follow_each_other_without_a_barrier_and_counters_wrap_around(tmp_path: Path, gpu: bool) -> None:
    for rank in on_ranks("back_to_back", tmp_path, gpu, 3, OLD):
        assert rank.keys() == OLD.keys()
        for config, errors in rank.items():
            assert len(errors) == 5 and max(errors) < 1e-5, f"{config}: {errors}"  # fp32


@each_way
def test_zeros_arrive_like_any_other_numbers(tmp_path: Path, gpu: bool) -> None:
    """Words without a signal tell by their own bits that they have arrived; zeros must do so, too."""
    names = list(OLD) if gpu else ["ll", "sentinel", "two_sentinel", "collective"]
    for rank in on_ranks("of_zeros", tmp_path, gpu, 2, names):
        for config, largest in rank.items():
            assert [value == 0.0 for value in largest] == [True, False, True, True], (config, largest)


@pytest.mark.gpu(2, each=True)
def test_a_captured_call_can_be_replayed(tmp_path: Path) -> None:
    for rank in run_ranks(FUNCTIONS, "replayed", machine().gpus, tmp_path, gpu=True):
        for config, errors in rank.items():
            assert max(errors) < 1e-5, f"{config}: {errors}"
