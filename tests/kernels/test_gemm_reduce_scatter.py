"""GEMM + reduce-scatter is right in every mode: see ``every_mode``."""

from __future__ import annotations

from typing import Any

import pytest
from every_mode import EveryModeTests, whole
from gather_tiles import SMALL

from autotune.kernels.gemm_reduce_scatter.copy_engine import chunks, parcels
from autotune.kernels.gemm_reduce_scatter.problem import MOST_ROWS_AT_ONCE
from autotune.machine import Machine

ODD = {"rows": 11, "n": 40, "k": 72, "bias": True, "b_order": "nk", "residual": True}

GPU_TILES = [
    {
        "block_m": 128, "block_n": 256, "block_k": 64, "group_m": 8, "num_warps": 8, "num_stages": 3, "split_k": 1,
        "transfer_tiles": 4, "transfer_rows": 512, "gemm_streams": 2, "sum_block": 2048, "sum_warps": 8,
    },
    {
        "block_m": 64, "block_n": 64, "block_k": 64, "group_m": 4, "num_warps": 4, "num_stages": 4, "split_k": 2,
        "transfer_tiles": 2, "transfer_rows": 64, "gemm_streams": 4, "sum_block": 512, "sum_warps": 4,
    },
    {
        "block_m": 16, "block_n": 128, "block_k": 64, "group_m": 1, "num_warps": 4, "num_stages": 4, "split_k": 4,
        "transfer_tiles": 1, "transfer_rows": 16, "gemm_streams": 1, "sum_block": 8192, "sum_warps": 16,
    },
    {
        "block_m": 64, "block_n": 128, "block_k": 64, "group_m": 2, "num_warps": 8, "num_stages": 3, "split_k": 1,
        "transfer_tiles": 1, "transfer_rows": 128, "gemm_streams": 2, "sum_block": 1024, "sum_warps": 8,
    },
    {
        "block_m": 16, "block_n": 32, "block_k": 32, "group_m": 2, "num_warps": 4, "num_stages": 2, "split_k": 1,
        "transfer_tiles": 1, "transfer_rows": 32, "gemm_streams": 1, "sum_block": 512, "sum_warps": 4,
    },
]  # fmt: skip


class TestGemmReduceScatter(EveryModeTests):
    name = "gemm_reduce_scatter"
    modes = {"bsp", "push", "pull", "one_shot", "custom_collective", "copy_engine"}
    exchanging = {"one_shot", "custom_collective", "copy_engine"}
    shared_out = ("k",)
    gpu_count = 20

    steps = [
        {**SMALL, "transfer_tiles": 2},
        {**SMALL, "block_k": 64, "group_m": 1, "num_stages": 3, "split_k": 1, "sum_block": 1024},
        {**SMALL, "group_m": 4, "num_stages": 3, "split_k": 1, "transfer_tiles": 2, "transfer_rows": 32},
    ]
    gpu_steps = GPU_TILES
    small = [
        (1, ODD, 1),
        (2, {"rows": 35, "n": 24, "k": 40, "bias": True, "dtype": "fp16"}, 4),
        (3, {**ODD, "n": 24}, 1),
        (4, {**ODD, "n": 24, "k": 40, "dtype": "fp32", "b_order": "kn"}, 1),
        whole(2, {"rows": 32, "n": 64, "k": 64}, 4),  # tiles divide an owner's rows
        whole(3, {"rows": 1, "n": 24, "k": 56, "dtype": "fp32"}, 1),
    ]
    large = [
        {"rows": 1, "n": 8192, "k": 1024},
        {"rows": 64, "n": 8192, "k": 3584},
        {"rows": 512, "n": 8192, "k": 3584},
        {"rows": 1024, "n": 8192, "k": 3584, "b_order": "nk"},
        {"rows": 130, "n": 360, "k": 2880, "b_order": "nk", "bias": True},
        {"rows": 200, "n": 2880, "k": 360, "bias": True, "dtype": "fp16", "residual": True},
        {"rows": 129, "n": 37, "k": 101},
        {"rows": 96, "n": 512, "k": 264, "dtype": "fp32", "bias": True},
        {"rows": 7, "n": 136, "k": 72, "dtype": "fp32", "b_order": "nk"},
    ]

    def problem(self, *, rows: int, **sizes: Any) -> Any:
        return super().problem(m=rows * sizes["world_size"], **sizes)

    def modes_of(self, problem: Any, here: Machine) -> set[str]:
        return super().modes_of(problem, here) - ({"one_shot"} if problem.m > MOST_ROWS_AT_ONCE else set())

    def steps_of(self, problem: Any, steps: list[dict[str, int]]) -> list[dict[str, int]]:
        return [step for step in steps if step["transfer_tiles"] == 1 or problem.n > 32 or problem.rows > 16]


@pytest.mark.parametrize("world_size", [2, 3, 8])
@pytest.mark.parametrize("rows", [1, 7, 64])
@pytest.mark.parametrize("transfer_rows", [16, 32, 100])
def test_chunks_send_every_row_once_to_its_owner_the_next_ranks_first(
    world_size: int, rows: int, transfer_rows: int
) -> None:
    for rank in range(world_size):
        cut = list(chunks(rank, rows, world_size, transfer_rows))
        computed = [row for begin, end in cut for row in range(begin, end)]
        first = (rank + 1) * rows
        assert computed == [(first + row) % (world_size * rows) for row in range(world_size * rows)]
        assert all(0 < end - begin <= transfer_rows for begin, end in cut)
        sent = {
            (owner, row)
            for begin, end in cut
            for owner, low, high in parcels(begin, end, rank, rows)
            for row in range(low, high)
        }
        assert sent == {(row // rows, row) for row in computed if row // rows != rank}
