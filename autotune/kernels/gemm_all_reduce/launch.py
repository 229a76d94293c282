"""Launching GEMM + all-reduce: the scratch of each mode, and its launch.

Modes: ``bsp`` calls the library, ``one_shot`` and ``two_shot`` our kernel, once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl

from autotune.dtypes import DTYPES
from autotune.kernels.gemm_all_reduce import device
from autotune.kernels.gemm_all_reduce.library import bulk_synchronous
from autotune.kernels.gemm_all_reduce.problem import MOST_INBOX_BYTES, SLOTS, GemmAllReduce
from autotune.kernels.gemm_all_reduce.scratch import Scratch
from autotune.kernels.launching.contract import Call, Kernels
from autotune.kernels.launching.empty import empty_launches
from autotune.kernels.launching.gemm import GemmKnobs, SummedTensors, readable, wire_dtype
from autotune.kernels.launching.graphs import graphed
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.tensors import OPERAND_DTYPES, TORCH_DTYPES, Allocate, Run
from autotune.machine import Machine

MODES = {"one_shot": device.ONE_SHOT, "two_shot": device.TWO_SHOT}
LARGEST_TILE = 256
SMALLEST_TILE = (16, 32)


@dataclass(frozen=True, kw_only=True)
class GemmAllReduceKnobs(GemmKnobs):
    """Defaults stand for knobs that a mode lacks; they have no effect there."""

    programs_per_unit: int = 1
    combine: str = "sender"
    protocol: str = "signal"

    @property
    def ll(self) -> bool:
        """True if parts travel by the LL protocol."""
        return self.protocol == "ll"

    @property
    def separate(self) -> bool:
        """True if programs of their own combine."""
        return self.combine == "separate"


ReduceCall = Call[GemmAllReduce, GemmAllReduceKnobs, SummedTensors, Scratch]


class GemmAllReduceKernels(Kernels[GemmAllReduce, GemmAllReduceKnobs, SummedTensors, Scratch]):
    knobs = GemmAllReduceKnobs
    tensors_type = SummedTensors
    results = ("c",)

    def tensors(self, problem: GemmAllReduce, shared: Allocate, own: Allocate) -> SummedTensors:
        a = own((problem.m, problem.k_local), OPERAND_DTYPES[problem.dtype])
        return SummedTensors.of(problem, a, (problem.k_local, problem.n), (problem.m, problem.n), own)

    def scratch(
        self, problem: GemmAllReduce, knobs: GemmAllReduceKnobs, machine: Machine, shared: Allocate, own: Allocate
    ) -> Scratch | None:
        """Counters, inboxes and results; None for ``bsp``."""
        if knobs.mode == "bsp":
            return None
        ints, tiles, tile = torch.int32, knobs.tiles(problem.m, problem.n), (knobs.block_m, knobs.block_n)
        wire = torch.int64 if knobs.ll else TORCH_DTYPES[problem.result_dtype]
        in_all = problem.inbox_bytes(knobs.mode, *tile, ll=knobs.ll) // wire.itemsize
        results = SLOTS * tiles if knobs.mode == "two_shot" else 0
        in_results = results * math.prod(tile) * problem.result_size * (2 if knobs.ll else 1) // wire.itemsize
        of_rows = ((in_all - in_results) // knobs.block_n,)
        partials, tickets = knobs.partials(problem.m, problem.n, own)
        phased, dtype = knobs.phased, TORCH_DTYPES[problem.result_dtype]
        return Scratch(
            epoch_counter=shared((1,), torch.int64),
            status=shared((1,), ints),
            arrivals=shared((SLOTS, tiles), ints),
            returns=shared((results,), ints),
            inbox=shared((in_all - in_results,), wire if knobs.ll else wire_dtype(problem, machine)),
            inbox_scales=shared(of_rows, torch.float32) if problem.wire == "fp8" else None,
            results=shared((in_results,), wire),
            partials=partials,
            tickets=tickets,
            ready=shared((problem.world_size,), ints) if phased else None,
            phase=own((1,), ints) if phased else None,
            parts=own((tiles, *tile), dtype) if phased else None,
        )

    def scratch_bytes(self, problem: GemmAllReduce) -> int:
        """The largest inbox that the space allows, and the counters of the smallest tiles."""
        # Tiles are powers of two: the largest leaves the most beyond the matrix's edge, and the smallest are the most.
        block_m, block_n = (
            min(LARGEST_TILE, max(smallest, 1 << (size - 1).bit_length()))
            for size, smallest in zip((problem.m, problem.n), SMALLEST_TILE, strict=True)
        )
        inboxes = (problem.inbox_bytes(mode, block_m, block_n, ll=True) for mode in MODES)
        tiles = math.ceil(problem.m / SMALLEST_TILE[0]) * math.ceil(problem.n / SMALLEST_TILE[1])
        return min(max(inboxes), MOST_INBOX_BYTES) + 2 * SLOTS * tiles * torch.int32.itemsize + (64 << 10)

    def plan(self, call: ReduceCall) -> list[Launch]:
        problem, knobs, tensors, scratch = call.problem, call.knobs, call.tensors, call.scratch
        tiles = knobs.tiles(problem.m, problem.n)
        programs = tiles * knobs.split_k
        if knobs.schedule == "persistent":
            programs = min(programs, call.machine.compute_units * knobs.programs_per_unit)
        blocking = knobs.schedule == "persistent" and knobs.split_k > 1 and not knobs.separate
        arguments = {
            **knobs.common(problem, tensors, call.machine), "a": knobs.a_operand(tensors.a), "c": tensors.c,
            "inbox": scratch.inbox, "inbox_scales": scratch.inbox_scales, "results": scratch.results,
            "partials": scratch.partials, "tickets": scratch.tickets,
            "M": problem.m, "N": problem.n, "K": problem.k_local, "gemm_programs": programs, "rank": call.rank,
            "heap_bases": call.bases, "epoch_counter": scratch.epoch_counter, "arrivals": scratch.arrivals,
            "returns": scratch.returns, "status": scratch.status, "spin_limit": call.spin_limit,
            "TYPE": getattr(tl, DTYPES[problem.result_dtype].triton), "WORLD": problem.world_size,
            "MODE": MODES[knobs.mode].value,
            "LL": knobs.ll, "SEPARATE": knobs.separate, "SPLITS": knobs.split_k, "PHASED": knobs.phased,
            "ready": scratch.ready, "phase": scratch.phase, "parts": scratch.parts, "finishing": None,
            "residual": tensors.residual if problem.residual else None,
        }  # fmt: skip
        combining = tiles if knobs.separate or knobs.barrier else 0
        arguments["trace"] = knobs.trace_of(programs + combining, tensors.c)
        if knobs.phased:
            return _in_phases(call, programs, arguments)
        resident = programs if blocking else None
        return [Launch(device.gemm_all_reduce_kernel, programs + combining, arguments, knobs.options, resident)]

    def readable(
        self, problem: GemmAllReduce, knobs: GemmAllReduceKnobs, name: str, operand: torch.Tensor
    ) -> torch.Tensor:  # fmt: skip
        return readable(name, operand, apart=knobs.apart)

    def library(self, call: Call[GemmAllReduce, GemmAllReduceKnobs, SummedTensors, None]) -> Run:
        empty = empty_launches(call.knobs.empty_launches)
        run = bulk_synchronous(call.problem, call.tensors, call.rank, call.group, empty)
        return graphed(run) if call.knobs.launch == "graph" else run


KERNELS = GemmAllReduceKernels()


def _in_phases(call: ReduceCall, gemm_programs: int, fused: dict[str, Any]) -> list[Launch]:
    """The GEMM, then the all-reduce: in one launch, whose last programs exchange, or in two."""
    knobs, tiles = call.knobs, call.knobs.tiles(call.problem.m, call.problem.n)
    arguments = {**fused, "SEPARATE": True, "finishing": gemm_programs + tiles}
    if knobs.barrier:
        return [Launch(device.gemm_all_reduce_kernel, gemm_programs + tiles, arguments, knobs.options)]
    kernel = device.all_reduce_kernel
    exchange = {name: arguments[name] for name in kernel.arg_names if name in arguments}
    return [
        Launch(device.gemm_all_reduce_kernel, gemm_programs, {**arguments, "ready": None}, knobs.options),
        *empty_launches(knobs.empty_launches),
        Launch(kernel, tiles, exchange, {"num_warps": knobs.num_warps}),
    ]
