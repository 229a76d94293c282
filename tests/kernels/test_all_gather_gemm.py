"""All-gather + GEMM is right in every mode: under the interpreter on 1 to 4 ranks, and on all GPUs there are."""

from __future__ import annotations

from typing import Any

import pytest
from every_mode import check_all, few, on_cpu, ranks_a_gpu, variants, whole
from gather_tiles import GPU_TILES, LARGER, SMALL, WIDER

from autotune.config import Config
from autotune.kernels.all_gather_gemm.copy_engine import rounds
from autotune.machine import machine
from autotune.task import Task
from autotune.workloads import workload

WORKLOAD = workload("all_gather_gemm")
MODES = {"bsp", "pull", "pull_staged", "push", "custom_collective"}

ALIGNED = {"m": 32, "n": 32, "k": 64}
"""Per rank; tiles divide the shard, and in ODD the last one of each shard is clipped."""
ODD = {"m": 27, "n": 20, "k": 72, "bias": True, "b_order": "nk"}
TINY = {"m": 1, "n": 24, "k": 56, "dtype": "fp32"}


def problem_of(world_size: int, layout: str, sizes: dict[str, Any]) -> Any:
    """A problem whose sharded dimensions are ``sizes`` times the ranks."""
    sharded = "m" if layout == "rows" else "k"
    scaled = {name: value * world_size if name in ("n", sharded) else value for name, value in sizes.items()}
    return WORKLOAD.problem_type(layout=layout, world_size=world_size, **scaled)


INTERPRETED_TILES = [SMALL, LARGER, WIDER]


@pytest.mark.parametrize(
    ("world_size", "layout", "sizes"),
    [
        (1, "rows", ALIGNED),
        (2, "rows", ODD),
        (2, "k", {**ODD, "dtype": "fp16"}),
        (3, "rows", TINY),
        whole(2, "rows", ALIGNED),
        whole(2, "k", TINY),
        whole(4, "rows", {**ODD, "m": 6, "k": 40, "dtype": "fp16"}),
        whole(4, "k", {"m": 16, "n": 32, "k": 32}),
    ],
)
def test_every_mode_is_right_under_the_interpreter(world_size: int, layout: str, sizes: dict[str, Any]) -> None:
    here = on_cpu()
    problem = problem_of(world_size, layout, sizes)
    tiles = [tile for tile in INTERPRETED_TILES if tile["block_m"] <= max(16, problem.m)]
    configs = few(problem, variants(WORKLOAD, problem, here, tiles), 4 if world_size == 2 else 1)
    check_all(WORKLOAD, problem, configs, MODES - ({"custom_collective"} if world_size == 1 else set()))


def test_kernels_that_wait_for_each_other_are_right_on_four_ranks() -> None:
    problem, modes = problem_of(4, "rows", {**ODD, "m": 6, "n": 10, "k": 40}), {"push", "pull", "custom_collective"}
    configs = [each for each in variants(WORKLOAD, problem, on_cpu(), INTERPRETED_TILES) if each["mode"] in modes]
    check_all(WORKLOAD, problem, few(problem, configs, 1), modes)


COPIES = {"mode": "copy_engine", "transfer_rows": 16, "gemm_streams": 1, "chunk_sizes": "shrinking"}
WORDS = {"mode": "custom_collective", "comm_programs": 2, "copy_kib": 2, "peer_order": "fanout", "protocol": "sentinel"}


def test_chunks_that_shrink_and_words_are_right_on_three_ranks() -> None:
    here, problem = on_cpu(), problem_of(3, "rows", {"m": 40, "n": 20, "k": 72, "bias": True})
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


PAPER = {"n": 3584, "k": 8192, "dtype": "fp16", "layout": "k"}
"""n per rank, k in all: Llama-70B's MLP up-projection on 8 GPUs."""


@ranks_a_gpu
@pytest.mark.parametrize(
    "sizes",
    [
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
    ],
    ids=lambda sizes: "-".join(str(value) for value in sizes.values()),
)
def test_every_mode_is_right_on_gpus(ranks: int, sizes: dict[str, Any]) -> None:
    here = machine()
    world_size = ranks * here.gpus
    problem = WORKLOAD.problem_type(world_size=world_size, **{**sizes, "n": sizes["n"] * world_size})
    tiles = [tile for tile in GPU_TILES if tile["block_m"] <= max(16, problem.m)]
    check_all(WORKLOAD, problem, few(problem, variants(WORKLOAD, problem, here, tiles), 16), MODES)
