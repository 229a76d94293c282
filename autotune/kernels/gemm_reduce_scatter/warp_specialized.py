"""Warp specialization: one launch whose programs load, multiply and send by different warps."""

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
from autotune.kernels.launching.specialized import OPTIONS, specialized
from autotune.kernels.launching.tensors import TORCH_DTYPES, Allocate


@dataclass(frozen=True)
class Parts:
    """Memory beside the operands, on the heap; counters begin at zero."""

    epoch_counter: torch.Tensor
    """int64 [1]: see ``primitives/counters.py``."""
    arrivals: torch.Tensor
    """int32 [world_size, tiles]: parts of a rank's tile that were there."""
    inbox: torch.Tensor
    """[2 slots, world_size, tiles, block_m, block_n], by their source."""

    def poison(self) -> None:
        """Fill with NaN what a right launch writes before it reads it."""
        self.inbox.fill_(float("nan"))


class WarpSpecializedWay(GemmWay[GemmReduceScatter, WarpSpecialized, SummedTensors, Parts]):
    def scratch(self, task: ScatterTask, mode: WarpSpecialized, shared: Allocate, own: Allocate) -> Parts:
        problem = task.problem
        tiles = (problem.world_size, mode.tiles(problem.rows, problem.n))
        return Parts(
            epoch_counter=shared((1,), torch.int64),
            arrivals=shared(tiles, torch.int32),
            inbox=shared((SLOTS, *tiles, mode.block_m, mode.block_n), TORCH_DTYPES[problem.result_dtype]),
        )

    def launches(self, call: Call[GemmReduceScatter, WarpSpecialized, SummedTensors, Parts]) -> list[Launch]:
        """A program for each compute unit, all of them resident: own tiles wait for the peers'."""
        from autotune.kernels.gemm_reduce_scatter.specialized_kernel import specialized_kernel  # Gluon, which few need

        problem, mode, tensors, scratch = call.problem, call.knobs, call.tensors, call.scratch
        programs = min(call.machine.compute_units, problem.world_size * mode.tiles(problem.rows, problem.n))
        arguments = call.common() | specialized(call.task, mode, tensors) | {
            "residual": tensors.residual, "scale_a": tensors.scale_a, "inbox": scratch.inbox,
            "arrivals": scratch.arrivals, "M": problem.m, "N": problem.n, "K": problem.k_local, "rows": problem.rows,
            "trace": mode.trace_of(programs, tensors.c),
        }  # fmt: skip
        return [Launch(specialized_kernel, programs, arguments, OPTIONS, programs)]

    def roundings(self, problem: GemmReduceScatter) -> float:
        """Each part, and the sum."""
        return 2.0
