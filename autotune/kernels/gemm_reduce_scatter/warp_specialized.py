"""Warp specialization: one launch whose programs load, multiply, send and sum by different warps."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from autotune.kernels.gemm.library import GemmWay
from autotune.kernels.gemm_reduce_scatter.fused import SLOTS
from autotune.kernels.gemm_reduce_scatter.modes import ScatterTask, WarpSpecialized
from autotune.kernels.gemm_reduce_scatter.problem import GemmReduceScatter
from autotune.kernels.launching.contract import Call
from autotune.kernels.launching.gemm import SummedTensors
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.specialized import sending_gemm
from autotune.kernels.launching.tensors import TORCH_DTYPES, Allocate
from autotune.kernels.primitives.all_reduce import SCATTER


@dataclass(frozen=True)
class Parts:
    """Memory on the heap; counters begin at zero."""

    epoch_counter: torch.Tensor
    """int64 [1]: see ``primitives/counters.py``."""
    arrivals: torch.Tensor
    """int32 [2 slots, tiles]: parts of our tiles that have arrived, over all launches that used the slot."""
    inbox: torch.Tensor
    """[2 slots, sources, tiles, block_m, block_n] in C's type: all ranks' parts of our tiles."""

    def poison(self) -> None:
        """Fill with NaN what a right launch writes before it reads it."""
        self.inbox.fill_(torch.nan)


SpecializedCall = Call[GemmReduceScatter, WarpSpecialized, SummedTensors, Parts]


class WarpSpecializedWay(GemmWay[GemmReduceScatter, WarpSpecialized, SummedTensors, Parts]):
    def scratch(self, task: ScatterTask, mode: WarpSpecialized, shared: Allocate, own: Allocate) -> Parts:
        problem = task.problem
        tiles = mode.tiles(problem.rows, problem.n)
        return Parts(
            epoch_counter=shared((1,), torch.int64),
            arrivals=shared((SLOTS, tiles), torch.int32),
            inbox=shared(
                (SLOTS, problem.world_size, tiles, mode.block_m, mode.block_n), TORCH_DTYPES[problem.result_dtype]
            ),
        )

    def launches(self, call: SpecializedCall) -> list[Launch]:
        return [sending_gemm(call, SCATTER)]

    def roundings(self, problem: GemmReduceScatter) -> float:
        """Each part, and the sum."""
        return 2.0
