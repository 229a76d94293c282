"""GEMM + all-reduce in all its modes: the operands, and the way of each mode."""

from __future__ import annotations

import math

import torch

from autotune.kernels.gemm.library import GemmKernels
from autotune.kernels.gemm_all_reduce.exchange import SHOTS
from autotune.kernels.gemm_all_reduce.fused import FusedWay
from autotune.kernels.gemm_all_reduce.library import BulkSynchronous, CustomCollectiveWay
from autotune.kernels.gemm_all_reduce.modes import MODES, CustomCollective, Library, OneShot, TwoShot
from autotune.kernels.gemm_all_reduce.problem import MOST_INBOX_BYTES, SLOTS, GemmAllReduce
from autotune.kernels.launching.gemm import SummedTensors
from autotune.kernels.launching.tensors import Allocate
from autotune.kernels.launching.way import ModeKernels

LARGEST_TILE = 256
SMALLEST_TILE = (16, 32)
MOST_SUM_BLOCK = 8192


class GemmAllReduceKernels(GemmKernels, ModeKernels[GemmAllReduce, SummedTensors]):
    modes = MODES
    ways = {
        Library: BulkSynchronous(),
        CustomCollective: CustomCollectiveWay(),
        OneShot: FusedWay(),
        TwoShot: FusedWay(),
    }
    tensors_type = SummedTensors
    results = ("c",)

    def tensors(self, problem: GemmAllReduce, shared: Allocate, own: Allocate) -> SummedTensors:
        return SummedTensors.of(problem, own)

    def scratch_bytes(self, problem: GemmAllReduce) -> int:
        """The largest inbox that the space allows, and the counters of the smallest tiles."""
        # Tiles are powers of two: the largest leaves the most beyond the matrix's edge, and the smallest are the most.
        block_m, block_n = (
            min(LARGEST_TILE, max(smallest, 1 << (size - 1).bit_length()))
            for size, smallest in zip((problem.m, problem.n), SMALLEST_TILE, strict=True)
        )
        largest = math.ceil(problem.m / block_m) * math.ceil(problem.n / block_n)
        blocks = math.ceil(problem.m * problem.n / MOST_SUM_BLOCK)
        inboxes = [problem.inbox_bytes(shots, largest, block_m * block_n, "ll") for shots in SHOTS]
        inboxes += [problem.inbox_bytes(shots, blocks, MOST_SUM_BLOCK, "ll") for shots in SHOTS]
        tiles = math.ceil(problem.m / SMALLEST_TILE[0]) * math.ceil(problem.n / SMALLEST_TILE[1])
        return min(max(inboxes), MOST_INBOX_BYTES) + 2 * SLOTS * tiles * torch.int32.itemsize + (64 << 10)


KERNELS = GemmAllReduceKernels()
