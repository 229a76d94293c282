"""GEMM + reduce-scatter in all its modes: the operands, and the way of each mode."""

from __future__ import annotations

import math

from autotune.kernels.gemm.library import GemmKernels
from autotune.kernels.gemm_reduce_scatter.copy_engine import CopyEngineWay
from autotune.kernels.gemm_reduce_scatter.fused import SLOTS, FusedWay
from autotune.kernels.gemm_reduce_scatter.library import BulkSynchronous, CustomCollectiveWay
from autotune.kernels.gemm_reduce_scatter.modes import (
    MODES,
    CopyEngine,
    CustomCollective,
    Library,
    OneShot,
    Pull,
    Push,
)
from autotune.kernels.gemm_reduce_scatter.one_shot import OneShotWay
from autotune.kernels.gemm_reduce_scatter.problem import MOST_ROWS_AT_ONCE, GemmReduceScatter
from autotune.kernels.launching.gemm import SummedTensors
from autotune.kernels.launching.tensors import Allocate
from autotune.kernels.launching.way import ModeKernels

LARGEST_BLOCK = 256
"""The largest tile has as many rows and as many columns."""


class GemmReduceScatterKernels(GemmKernels, ModeKernels[GemmReduceScatter, SummedTensors]):
    modes = MODES
    ways = {
        Library: BulkSynchronous(), CustomCollective: CustomCollectiveWay(), Push: FusedWay(), Pull: FusedWay(),
        OneShot: OneShotWay(), CopyEngine: CopyEngineWay(),
    }  # fmt: skip
    tensors_type = SummedTensors
    results = ("c",)

    def tensors(self, problem: GemmReduceScatter, shared: Allocate, own: Allocate) -> SummedTensors:
        return SummedTensors.of(problem, own)

    def scratch_bytes(self, problem: GemmReduceScatter) -> int:
        """The inboxes of the tiles that stand out most, and the counters of the smallest. Few rows in one shot may
        travel as LL words, and their tiles have every owner's.
        """
        few = problem.m <= MOST_ROWS_AT_ONCE
        rows, columns = 2 * _padded(problem.m, 16) if few else _padded(problem.rows, 16), _padded(problem.n, 32)
        inbox = SLOTS * problem.world_size * rows * columns * problem.result_size
        arrivals = problem.world_size * math.ceil(rows / 16) * math.ceil(columns / 32) * 4
        return inbox + arrivals + (64 << 10)


KERNELS = GemmReduceScatterKernels()


def _padded(size: int, smallest: int) -> int:
    """The most that a dimension has once it is cut into whole blocks of ``smallest`` to LARGEST_BLOCK."""
    return max(smallest, min(size + LARGEST_BLOCK - 1, 1 << (size - 1).bit_length()))
