"""Warp specialization: one launch whose programs push, load and multiply by different warps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from autotune.kernels.all_gather_gemm.fused import FusedWay
from autotune.kernels.all_gather_gemm.problem import EPILOGUES
from autotune.kernels.all_gather_gemm.scratch import Inbox
from autotune.kernels.all_gather_gemm.space import GatherTask, tail_of, tail_parts
from autotune.kernels.all_gather_gemm.specialized_modes import WarpSpecialized
from autotune.kernels.all_gather_gemm.way import GatherCall
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.specialized import OPTIONS, described, specialized
from autotune.kernels.launching.tensors import Allocate

SLOTS = 2


@dataclass(frozen=True, kw_only=True)
class TailInbox(Inbox):
    sums: torch.Tensor
    """fp32 [tiles of the last round, parts of K but the first, block_m, block_n], this rank's alone"""
    stored: torch.Tensor
    """int32 [tiles of the last round]"""

    def poison(self) -> None:
        super().poison()
        self.sums.fill_(math.nan)


class WarpSpecializedWay(FusedWay[WarpSpecialized, TailInbox]):
    def scratch(self, task: GatherTask, mode: WarpSpecialized, shared: Allocate, own: Allocate) -> TailInbox:
        problem, parts = task.problem, tail_parts(task, mode)
        tail = tail_of(task, mode.block_m, mode.block_n) if parts > 1 else 0
        memory: dict[str, Any] = {
            "sums": own((tail, parts - 1, mode.block_m, mode.block_n), torch.float32),
            "stored": own((tail,), torch.int32),
        }
        if mode.across_shards:
            # A box of TMA takes twice as long for a row beyond the edge, see ``row_of``.
            rows = SLOTS * problem.m + mode.block_m
            return TailInbox.of_rows(problem, shared, rows, (SLOTS, mode.across_shards), **memory)
        units = math.ceil(problem.shard[0] / mode.transfer_rows)
        return TailInbox.of_units(problem, shared, units, slots=SLOTS, **memory)

    def launches(self, call: GatherCall[WarpSpecialized, TailInbox]) -> list[Launch]:
        """A program for each compute unit, all of them resident: each has a share of every unit that peers wait for."""
        from autotune.kernels.all_gather_gemm.specialized_kernel import specialized_kernel  # Gluon, which few need

        problem, mode, tensors, scratch = call.problem, call.knobs, call.tensors, call.scratch
        programs = call.machine.compute_units
        arguments = call.common() | specialized(call.task, mode, tensors) | {
            "inbox": described(scratch.inbox, (mode.rows, mode.block_k)),
            "c": described(tensors.c, (mode.rows, mode.stored(call.task))),
            "shard": tensors.a, "inbox_pointer": scratch.inbox,
            "scale_a": None if problem.gathers_scales else tensors.scale_a,
            "scale_shard": tensors.scale_a if problem.gathers_scales else None, "scale_inbox": scratch.scale_inbox,
            "M": problem.m, "N": tensors.c.shape[1], "K": problem.k, "shard_rows": problem.shard[0],
            "unit": problem.k // mode.across_shards if mode.across_shards else mode.transfer_rows,
            "sums": scratch.sums, "stored": scratch.stored, "SPLITS": tail_parts(call.task, mode),
            "OWNERS": 1 if mode.across_shards else problem.world_size, "arrivals": scratch.arrivals, "SLOTS": SLOTS,
            "group_m": whole_shards(mode.group_m, math.ceil(problem.shard[0] / mode.block_m)),
            "EPILOGUE": EPILOGUES.index(problem.epilogue), "SENDING": mode.sending_warps,
            "trace": mode.trace_of(programs, tensors.c),
        }  # fmt: skip
        return [Launch(specialized_kernel, programs, arguments, OPTIONS, programs)]


def whole_shards(group_m: int, own_m: int) -> int:
    """As many rows of tiles as whole shards have: a group of three rows of ours and one of a peer's would wait."""
    return group_m // own_m * own_m or group_m
