"""Launching GEMM + all-reduce: the scratch of each mode, and its launch.

Modes: ``bsp`` calls the library, ``one_shot`` and ``two_shot`` our kernel, once; ``own_collective`` the library's GEMM,
then our all-reduce of its product, taken as one long row, maybe chunk by chunk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl

from autotune.dtypes import DTYPES
from autotune.heap.arena import SymmetricHeap
from autotune.kernels.gemm.tile import GemmKnobs
from autotune.kernels.gemm_all_reduce import device
from autotune.kernels.gemm_all_reduce.library import bulk_synchronous
from autotune.kernels.gemm_all_reduce.own_collective import OwnCollective
from autotune.kernels.gemm_all_reduce.problem import MOST_INBOX_BYTES, SLOTS, GemmAllReduce
from autotune.kernels.gemm_all_reduce.scratch import Scratch
from autotune.kernels.launching.contract import Call, Kernels
from autotune.kernels.launching.empty import empty_launches
from autotune.kernels.launching.gemm import SummedTensors, readable, wire_dtype
from autotune.kernels.launching.graphs import graphed
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.scratch import wire_type
from autotune.kernels.launching.tensors import OPERAND_DTYPES, TORCH_DTYPES, Allocate, Run
from autotune.kernels.primitives.protocols import PROTOCOLS
from autotune.machine import Machine

MODES = {"one_shot": device.ONE_SHOT, "two_shot": device.TWO_SHOT}
LARGEST_TILE = 256
SMALLEST_TILE = (16, 32)
MOST_SUM_BLOCK = 8192


@dataclass(frozen=True, kw_only=True)
class GemmAllReduceKnobs(GemmKnobs):
    """Defaults stand for knobs that a mode lacks; they have no effect there."""

    programs_per_unit: int = 1
    combine: str = "sender"
    protocol: str = "signal"
    exchange: str = "one_shot"
    sum_block: int = 0
    sum_warps: int = 0

    @property
    def shots(self) -> str:
        """The exchange: ``one_shot``, where every rank sums, or ``two_shot``, where a tile's owner does."""
        return self.exchange if self.mode == "own_collective" else self.mode

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
        ints, (tiles, tile) = torch.int32, _tiles(problem, knobs)
        phased, dtype = knobs.phased, TORCH_DTYPES[problem.result_dtype]
        wire = wire_type(knobs.protocol, dtype)
        in_all = problem.inbox_bytes(knobs.shots, tiles, math.prod(tile), knobs.protocol) // wire.itemsize
        results = SLOTS * tiles if knobs.shots == "two_shot" else 0
        words = math.prod(tile) * dtype.itemsize * (2 if knobs.protocol == "ll" else 1) // wire.itemsize
        in_results = results * words
        quantised = problem.wire == "fp8" and knobs.mode != "own_collective"
        partials, tickets = knobs.partials(problem.m, problem.n, own)
        return Scratch(
            epoch_counter=shared((1,), torch.int64),
            arrivals=shared((SLOTS, tiles), ints),
            returns=shared((results,), ints),
            inbox=shared((in_all - in_results,), wire_dtype(problem, machine) if quantised else wire),
            inbox_scales=shared(((in_all - in_results) // knobs.block_n,), torch.float32) if quantised else None,
            results=shared((in_results,), wire),
            partials=partials,
            tickets=tickets,
            ready=shared((problem.world_size,), ints) if phased else None,
            phase=own((1,), ints) if phased else None,
            parts=own(_parts(problem, knobs), dtype) if phased or knobs.mode == "own_collective" else None,
        )

    def scratch_bytes(self, problem: GemmAllReduce) -> int:
        """The largest inbox that the space allows, and the counters of the smallest tiles."""
        # Tiles are powers of two: the largest leaves the most beyond the matrix's edge, and the smallest are the most.
        block_m, block_n = (
            min(LARGEST_TILE, max(smallest, 1 << (size - 1).bit_length()))
            for size, smallest in zip((problem.m, problem.n), SMALLEST_TILE, strict=True)
        )
        largest = math.ceil(problem.m / block_m) * math.ceil(problem.n / block_n)
        inboxes = [problem.inbox_bytes(mode, largest, block_m * block_n, "ll") for mode in MODES]
        inboxes += [problem.inbox_bytes(mode, *_longest_row(problem), "ll") for mode in MODES]
        tiles = math.ceil(problem.m / SMALLEST_TILE[0]) * math.ceil(problem.n / SMALLEST_TILE[1])
        return min(max(inboxes), MOST_INBOX_BYTES) + 2 * SLOTS * tiles * torch.int32.itemsize + (64 << 10)

    def plan(self, call: ReduceCall) -> list[Launch]:
        problem, knobs, tensors, scratch = call.problem, call.knobs, call.tensors, call.scratch
        if knobs.mode == "own_collective":
            return [_all_reduce(call, number) for number in range(problem.m // _rows(problem, knobs))]
        tiles = knobs.tiles(problem.m, problem.n)
        programs = tiles * knobs.split_k
        if knobs.schedule == "persistent":
            programs = min(programs, call.machine.compute_units * knobs.programs_per_unit)
        blocking = knobs.schedule == "persistent" and knobs.split_k > 1 and not knobs.separate
        arguments = {
            **knobs.common(problem, tensors, call.machine), **_exchange(call), "c": tensors.c,
            "a": knobs.a_operand(tensors.a, in_two_parts=knobs.in_two_parts(problem, call.machine)),
            "partials": scratch.partials, "tickets": scratch.tickets,
            "M": problem.m, "N": problem.n, "K": problem.k_local, "gemm_programs": programs,
            "SEPARATE": knobs.separate, "SPLITS": knobs.split_k, "PHASED": knobs.phased,
            "ready": scratch.ready, "phase": scratch.phase, "finishing": None,
        }  # fmt: skip
        combining = tiles if knobs.separate or knobs.barrier else 0
        arguments["trace"] = knobs.trace_of(programs + combining, tensors.c)
        if knobs.phased:
            return _in_phases(call, programs, arguments)
        resident = programs if blocking else None
        return [Launch(device.gemm_all_reduce_kernel, programs + combining, arguments, knobs.options, resident)]

    def run(self, call: ReduceCall, launches: list[Launch], heap: SymmetricHeap) -> Run:
        """Run the library's GEMM and our all-reduce, or our kernel alone."""
        if call.knobs.mode != "own_collective":
            return super().run(call, launches, heap)
        assert call.scratch.parts is not None
        return OwnCollective(call.problem, call.tensors, call.scratch.parts, launches, heap)

    def readable(
        self, problem: GemmAllReduce, knobs: GemmAllReduceKnobs, name: str, operand: torch.Tensor
    ) -> torch.Tensor:  # fmt: skip
        return readable(name, operand, apart=knobs.apart)

    def library(self, call: Call[GemmAllReduce, GemmAllReduceKnobs, SummedTensors, None]) -> Run:
        empty = empty_launches(call.knobs.empty_launches)
        run = bulk_synchronous(call.problem, call.tensors, call.rank, call.group, empty)
        return graphed(run) if call.knobs.launch == "graph" else run


KERNELS = GemmAllReduceKernels()


def _rows(problem: GemmAllReduce, knobs: GemmAllReduceKnobs) -> int:
    """Rows of C that an all-reduce takes."""
    return min(problem.m, knobs.transfer_rows or problem.m)


def _tiles(problem: GemmAllReduce, knobs: GemmAllReduceKnobs) -> tuple[int, tuple[int, int]]:
    """The tiles in which a launch's part of C travels: their number, rows and columns."""
    if knobs.mode == "own_collective":
        return math.ceil(_rows(problem, knobs) * problem.n / knobs.sum_block), (1, knobs.sum_block)
    return knobs.tiles(problem.m, problem.n), (knobs.block_m, knobs.block_n)


def _parts(problem: GemmAllReduce, knobs: GemmAllReduceKnobs) -> tuple[int, ...]:
    """Shape of a rank's parts: those of ``_tiles``, for each launch."""
    tiles, tile = _tiles(problem, knobs)
    return (problem.m // _rows(problem, knobs), tiles, *tile)


def _longest_row(problem: GemmAllReduce) -> tuple[int, int]:
    """Number and elements of the tiles of ``own_collective`` that leave the most beyond C's end."""
    return math.ceil(problem.m * problem.n / MOST_SUM_BLOCK), MOST_SUM_BLOCK


def _exchange(call: ReduceCall) -> dict[str, Any]:
    """The arguments of an all-reduce, with or without a GEMM before it."""
    problem, scratch = call.problem, call.scratch
    return {
        "inbox": scratch.inbox, "inbox_scales": scratch.inbox_scales, "results": scratch.results,
        "rank": call.rank, "heap_bases": call.bases,
        "epoch_counter": scratch.epoch_counter, "arrivals": scratch.arrivals, "returns": scratch.returns,
        "status": call.status, "spin_limit": call.spin_limit, "parts": scratch.parts,
        "TYPE": getattr(tl, DTYPES[problem.result_dtype].triton), "WORLD": problem.world_size,
        "MODE": MODES[call.knobs.shots].value, "PROTOCOL": PROTOCOLS[call.knobs.protocol].value,
        "residual": call.tensors.residual if problem.residual else None,
    }  # fmt: skip


def _all_reduce(call: ReduceCall, number: int) -> Launch:
    """The all-reduce of a chunk of the library's product: a bias is in there, a residual is added to the sum."""
    problem, knobs, (tiles, (rows, columns)) = call.problem, call.knobs, _tiles(call.problem, call.knobs)
    height, parts = _rows(problem, knobs), call.scratch.parts
    here = slice(number * height, (number + 1) * height)
    c, residual = call.tensors.c[here], call.tensors.residual if problem.residual else None
    assert parts is not None
    arguments = {
        **_exchange(call), "c": c, "bias": c, "BIAS": False, "M": 1, "N": height * problem.n, "group_m": 1,
        "parts": parts[number], "residual": None if residual is None else residual[here],
        "finishing": tiles, "first": 0, "BLOCK_M": rows, "BLOCK_N": columns,
    }  # fmt: skip
    return Launch(device.all_reduce_kernel, tiles, arguments, {"num_warps": knobs.sum_warps})


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
        Launch(kernel, tiles, {**exchange, "first": -1}, {"num_warps": knobs.num_warps}),
    ]
