"""Our kernel alone: a finished tile travels at once, pushed by the rank that made it or pulled by its owner."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from autotune.kernels.gemm.kept_tiles import keep_tiles
from autotune.kernels.gemm_reduce_scatter import device
from autotune.kernels.gemm_reduce_scatter.modes import Fused, Pull, ScatterTask
from autotune.kernels.gemm_reduce_scatter.phases import sum_tiles_kernel
from autotune.kernels.gemm_reduce_scatter.problem import GemmReduceScatter
from autotune.kernels.launching.contract import Call
from autotune.kernels.launching.gemm import Splits, SummedTensors, wire_dtype
from autotune.kernels.launching.knobs import MEMORY
from autotune.kernels.launching.one_program import empty_launches
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.scratch import poison_inboxes
from autotune.kernels.launching.tensors import Allocate
from autotune.kernels.launching.way import Way

SLOTS = 2
"""Places for the tiles under way, used in turn; see device.py."""


@dataclass(frozen=True)
class Tiles:
    """Memory beside the operands; counters begin at zero."""

    epoch_counter: torch.Tensor
    """int64 [1], on the heap: see ``primitives/counters.py``."""
    arrivals: torch.Tensor
    """int32 [world_size, units], on the heap: launches in which a rank's unit of our rows was there."""
    inbox: torch.Tensor
    """[2 slots, world_size, tiles, block_m, block_n], on the heap, parts on their way; the second index is the source
    where they are pushed, the owner where they are pulled."""
    inbox_scales: torch.Tensor | None
    """fp32 [2 * world_size * tiles, block_m], on the heap: scales of the rows of tiles in an inbox of fp8."""
    sent: torch.Tensor
    """int32 [world_size, units]: finished tiles of each peer's units, zero between launches."""
    splits: Splits
    ready: torch.Tensor | None
    """int32 [world_size], on the heap, for ``tune taxes``: ranks that have ended their GEMM."""

    def poison(self) -> None:
        """Fill with NaN what a right launch writes before it reads it."""
        poison_inboxes(self.inbox, self.inbox_scales)


TilesCall = Call[GemmReduceScatter, Fused, SummedTensors, Tiles]


class FusedWay(Way[GemmReduceScatter, Fused, SummedTensors, Tiles]):
    def scratch(self, task: ScatterTask, mode: Fused, shared: Allocate, own: Allocate) -> Tiles:
        problem, world, ints = task.problem, task.problem.world_size, torch.int32
        tiles = mode.tiles(problem.rows, problem.n)
        units, places = math.ceil(tiles / mode.transfer_tiles), SLOTS * world * tiles
        rows_of_tiles = world * math.ceil(problem.rows / mode.block_m)
        return Tiles(
            epoch_counter=shared((1,), torch.int64),
            arrivals=shared((world, units), ints),
            inbox=shared((places, mode.block_m, mode.block_n), wire_dtype(task)),
            inbox_scales=shared((places, mode.block_m), torch.float32) if problem.wire == "fp8" else None,
            sent=own((world, units), ints),
            splits=Splits.of(mode, rows_of_tiles * mode.block_m, problem.n, own),
            ready=shared((world,), ints) if mode.phased else None,
        )

    def launches(self, call: TilesCall) -> list[Launch]:
        return _in_phases(call) if call.knobs.phased else [_gemm_scatter(call, _programs(call))]

    def roundings(self, problem: GemmReduceScatter) -> float:
        """Each part, and the sum."""
        return 2.0


def _programs(call: TilesCall) -> int:
    """One program a tile (or split of one), or persistent."""
    problem, mode = call.problem, call.knobs
    programs = problem.world_size * mode.tiles(problem.rows, problem.n) * mode.split_k
    if mode.schedule == "tile":
        return programs
    # The interpreter runs programs one after another: two of which one waits for the other's peers would hang.
    return min(programs, 1 if call.machine.is_interpreter else call.machine.compute_units)


def _gemm_scatter(call: TilesCall, programs: int) -> Launch:
    problem, mode, tensors, scratch = call.problem, call.knobs, call.tensors, call.scratch
    resident = None if mode.schedule == "tile" else programs
    arguments = {
        **mode.common(call.task, tensors), **call.common(),
        "a": mode.a_operand(tensors.a, in_two_parts=mode.in_two_parts(call.task)),
        "M": problem.m, "N": problem.n, "K": problem.k_local, "rows": problem.rows, "inbox": scratch.inbox,
        "inbox_scales": scratch.inbox_scales, "arrivals": scratch.arrivals, "sent": scratch.sent,
        **vars(scratch.splits), "SPLITS": mode.split_k,
        "PULL": isinstance(mode, Pull), "ROTATE": mode.peer_order == "rotate",
        "TRANSFER_TILES": mode.transfer_tiles, "NEXT_TURN": mode.signals == "next_turn",
        "FLATTEN": mode.schedule == "flattened", "BY_RANK": problem.sums_by_rank,
        "MEMORY": mode.handover == MEMORY or problem.sums_by_rank,
        "trace": mode.trace_of(programs, tensors.c), "residual": tensors.residual, "result": tensors.c,
    }  # fmt: skip
    return Launch(device.gemm_scatter_kernel, programs, arguments, mode.options, resident)


def _in_phases(call: TilesCall) -> list[Launch]:
    """For ``tune taxes``: the GEMM, then the sum of what it has kept."""
    problem, mode, tensors, scratch = call.problem, call.knobs, call.tensors, call.scratch
    gemm = keep_tiles(
        call, _programs(call), kept=scratch.inbox, kept_scales=scratch.inbox_scales, rows=problem.rows, SLOTS=SLOTS,
        FLATTEN=mode.schedule == "flattened",
    )  # fmt: skip
    known = mode.common(call.task, tensors) | call.common()
    arguments = {name: known[name] for name in sum_tiles_kernel.arg_names if name in known} | {
        "result": tensors.c, "residual": tensors.residual, "inbox": scratch.inbox,
        "inbox_scales": scratch.inbox_scales, "rows": problem.rows, "N": problem.n, "ready": scratch.ready,
    }  # fmt: skip
    tiles = mode.tiles(problem.rows, problem.n)
    summing = Launch(sum_tiles_kernel, tiles, arguments, {"num_warps": mode.num_warps})
    return [gemm, *empty_launches(mode.empty_launches), summing]
