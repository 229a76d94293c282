"""QuACK's all-gather + GEMM: copy engines push A's shards, and one persistent GEMM waits for each before the first tile
that reads it (``quack.distributed``, which has its design and its figures).

``pip install "quack-kernels[cu13]==0.6.5"``, or without the extra for CUDA 12. Its compiler, CUTLASS' DSL 4.8.1, is 92
MB for either. It needs PyTorch's symmetric memory, and no NVSHMEM.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

TILES = (
    (128, 256, 2, 1, False), (128, 256, 1, 2, False), (256, 128, 2, 1, False), (256, 192, 1, 2, False),
    (128, 192, 2, 1, True), (128, 128, 1, 2, True),
)  # fmt: skip
"""Rows and columns of a tile, a cluster's along each, and whether groups of warps take turns: the first is its
benchmark's, the others are of those that it tries itself for a GEMM on sm_90.
"""


def gather(operation: Any) -> list[Callable[[], torch.Tensor]]:
    """A call for each tile that divides a shard's rows. Each stages A, as its users do."""
    from cutlass.base_dsl.common import DSLBaseError
    from quack.distributed import AllGatherRunner
    from quack.gemm import gemm

    tensors = operation._tensors
    rows, depth = tensors.a.shape
    fitting = [tile for tile in TILES if rows % (tile[0] * tile[2]) == 0]
    if not fitting:
        raise ValueError(f"no tile divides the {rows} rows of a shard")
    runner, product = AllGatherRunner(rows, depth, tensors.a.dtype), torch.empty_like(tensors.c)

    def call_with(tile: tuple[int, int, int, int, bool]) -> Callable[[], torch.Tensor]:
        *sizes, pingpong = tile

        def run() -> torch.Tensor:
            try:
                with runner.gather(tensors.a) as (gathered, arrivals):
                    gemm(gathered, tensors.b.T, product, None, None, *sizes, pingpong=pingpong, ag_args=arrivals)
            except DSLBaseError as error:
                raise RuntimeError(str(error)) from error
            return product

        return run

    return [call_with(tile) for tile in fitting]
