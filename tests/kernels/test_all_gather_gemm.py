"""All-gather + GEMM is right in every mode: see ``every_mode``."""

from __future__ import annotations

import pytest
from every_mode import EveryModeTests, check_all, on_cpu, whole
from gather_tiles import GPU_TILES, LARGER, SMALL, WIDER

from autotune.config import Config
from autotune.kernels.all_gather_gemm.copy_engine import rounds
from autotune.task import Task
from autotune.workloads import workload

WORKLOAD = workload("all_gather_gemm")

ALIGNED = {"m": 32, "n": 32, "k": 64}
"""n per rank; tiles divide the shard, and in ODD the last one of each shard is clipped."""
ODD = {"n": 20, "bias": True, "b_order": "nk"}
PAPER = {"n": 3584, "k": 8192, "dtype": "fp16", "layout": "k"}
"""Llama-70B's MLP up-projection on 8 GPUs."""


class TestAllGatherGemm(EveryModeTests):
    name = "all_gather_gemm"
    modes = {"bsp", "pull", "pull_staged", "push", "custom_collective"}
    exchanging = {"custom_collective"}
    shared_out = ("n",)
    steps = [SMALL, LARGER, WIDER]
    gpu_steps = GPU_TILES
    small = [
        (1, ALIGNED, 1),
        (2, {**ODD, "m": 54, "k": 72}, 4),
        (2, {**ODD, "m": 27, "k": 144, "layout": "k", "dtype": "fp16"}, 4),
        (3, {"m": 3, "n": 24, "k": 56, "dtype": "fp32"}, 1),
        (4, {**ODD, "m": 24, "n": 10, "k": 40}, {"push", "pull", "custom_collective"}),  # they wait for each other
        whole(2, {**ALIGNED, "m": 64}, 4),
        whole(2, {"m": 1, "n": 24, "k": 112, "dtype": "fp32", "layout": "k"}, 4),
        whole(4, {**ODD, "m": 24, "k": 40, "dtype": "fp16"}, 1),
        whole(4, {"m": 16, "n": 32, "k": 128, "layout": "k"}, 1),
    ]
    large = [
        {"m": 1, **PAPER},
        {"m": 16, **PAPER},
        {"m": 100, **PAPER},
        {"m": 1024, **PAPER},
        {"m": 4096, "n": 7168, "k": 8192},
        {"m": 64, "n": 3584, "k": 8192},
        {"m": 8, "n": 360, "k": 2880, "b_order": "nk", "bias": True},
        {"m": 1000, "n": 360, "k": 2880, "bias": True},
        {"m": 520, "n": 2048, "k": 1024, "dtype": "fp16", "b_order": "nk"},
        {"m": 256, "n": 512, "k": 512, "dtype": "fp32", "bias": True},
        {"m": 24, "n": 136, "k": 264, "dtype": "fp32", "layout": "k"},
        {"m": 2048, "n": 1000, "k": 4000},
        {"m": 300, "n": 500, "k": 1000, "layout": "k", "bias": True},
        {"m": 56, "n": 37, "k": 104, "b_order": "nk"},
    ]


COPIES = {"mode": "copy_engine", "transfer_rows": 16, "gemm_streams": 1, "chunk_sizes": "shrinking"}
WORDS = {"mode": "custom_collective", "comm_programs": 2, "copy_kib": 2, "peer_order": "fanout", "protocol": "sentinel"}


def test_chunks_that_shrink_and_words_are_right_on_three_ranks() -> None:
    here, problem = on_cpu(), WORKLOAD.problem_type(m=120, n=60, k=72, bias=True, world_size=3)
    configs = [Config(WORDS), *(Config({**COPIES, "copies": copies}) for copies in ("pulled", "pushed"))]
    assert [WORKLOAD.space.violation(config, Task(problem, here)) for config in configs] == [None] * 3
    check_all(WORKLOAD, problem, configs, set())


@pytest.mark.parametrize(
    ("world_size", "rows", "transfer_rows"), [(2, 1024, 128), (4, 100, 16), (3, 64, 64), (1, 8, 16)]
)
def test_the_last_chunks_are_the_smallest(world_size: int, rows: int, transfer_rows: int) -> None:
    turns = list(rounds(world_size, rows, transfer_rows, shrinking=True))
    for apart in range(1, world_size):
        chunks = [chunk for ranks, _, chunk in turns if ranks == apart]
        assert [begin for begin, _ in chunks] == [0, *(end for _, end in chunks[:-1])] and chunks[-1][1] == rows
        assert apart == world_size - 1 or len(chunks) == 1, "only the last shard is cut"
        sizes = [end - begin for begin, end in chunks]
        assert sizes == sorted(sizes, reverse=True) and sizes[-1] <= max(transfer_rows, rows * (len(chunks) == 1))


@pytest.mark.parametrize("rows", [1, 15, 100, 1023, 1025, 2050, 6000])
@pytest.mark.parametrize("transfer_rows", [16, 64, 1024, 2048])
def test_even_chunks_are_as_few_as_they_may_be_and_none_is_a_remainder(rows: int, transfer_rows: int) -> None:
    chunks = [chunk for _, _, chunk in rounds(2, rows, transfer_rows, shrinking=False)]
    sizes = [end - begin for begin, end in chunks]
    assert len(chunks) == -(-rows // transfer_rows) and sum(sizes) == rows and max(sizes) <= transfer_rows
    assert max(sizes) - min(sizes) < 16 * len(sizes), "a GEMM of few rows reads all of B as another does"
