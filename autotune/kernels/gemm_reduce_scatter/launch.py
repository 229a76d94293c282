"""Launching GEMM + reduce-scatter: the scratch of each mode, its launches, and how they are enqueued.

Modes: ``bsp``, ``own_collective`` and ``copy_engine`` call the library's GEMM, ``push`` and ``pull`` our kernel.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from autotune.heap.arena import SymmetricHeap
from autotune.kernels.gemm.tile import GemmKnobs
from autotune.kernels.gemm_reduce_scatter import device
from autotune.kernels.gemm_reduce_scatter.copy_engine import CopyEngine
from autotune.kernels.gemm_reduce_scatter.library import bulk_synchronous, multiply_and_pull
from autotune.kernels.gemm_reduce_scatter.problem import GemmReduceScatter
from autotune.kernels.gemm_reduce_scatter.scratch import Scratch
from autotune.kernels.launching.contract import Call, Kernels
from autotune.kernels.launching.empty import empty_launches
from autotune.kernels.launching.gemm import SummedTensors, readable, wire_dtype
from autotune.kernels.launching.graphs import graphed
from autotune.kernels.launching.knobs import MEMORY
from autotune.kernels.launching.plan import Launch, in_order
from autotune.kernels.launching.tensors import OPERAND_DTYPES, TORCH_DTYPES, Allocate, Run
from autotune.kernels.primitives.barrier import barrier_kernel
from autotune.machine import Machine

LONGEST_VECTOR = 16
"""Elements that a thread loads at once, at most."""

SLOTS = 2
"""Places for the tiles under way, used in turn; see device.py."""

LARGEST_BLOCK = 256
"""The largest tile has as many rows and as many columns."""


@dataclass(frozen=True, kw_only=True)
class GemmReduceScatterKnobs(GemmKnobs):
    """Defaults stand for knobs that a mode lacks; they have no effect there."""

    peer_order: str = "rotate"
    transfer_tiles: int = 0
    signals: str = "at_once"
    sum_block: int = 0
    sum_warps: int = 0


ScatterCall = Call[GemmReduceScatter, GemmReduceScatterKnobs, SummedTensors, Scratch]


class GemmReduceScatterKernels(Kernels[GemmReduceScatter, GemmReduceScatterKnobs, SummedTensors, Scratch]):
    knobs = GemmReduceScatterKnobs
    tensors_type = SummedTensors
    results = ("c",)

    def tensors(self, problem: GemmReduceScatter, shared: Allocate, own: Allocate) -> SummedTensors:
        a = own((problem.m, problem.k_local), OPERAND_DTYPES[problem.dtype])
        return SummedTensors.of(problem, a, (problem.k_local, problem.n), (problem.rows, problem.n), own)

    def scratch(
        self, problem: GemmReduceScatter, knobs: GemmReduceScatterKnobs, machine: Machine, shared: Allocate,
        own: Allocate,
    ) -> Scratch | None:  # fmt: skip
        """Counters, inboxes and the library's product; None for ``bsp``."""
        if knobs.mode == "bsp":
            return None
        world, ints = problem.world_size, torch.int32
        product: tuple[int, ...] = (problem.m, problem.n)
        inbox: tuple[int, ...] = (0,)
        if not knobs.block_m:  # the library's GEMM
            units = 0
            if knobs.mode == "copy_engine":
                inbox = (world, problem.rows, problem.n)
            partials, tickets = own((0,), torch.float32), own((0,), ints)
        else:
            tiles = knobs.tiles(problem.rows, problem.n)
            units = math.ceil(tiles / knobs.transfer_tiles)
            inbox, product = (SLOTS * world * tiles, knobs.block_m, knobs.block_n), (0, 0)
            rows_of_tiles = world * math.ceil(problem.rows / knobs.block_m)
            partials, tickets = knobs.partials(rows_of_tiles * knobs.block_m, problem.n, own)
        dtype = TORCH_DTYPES[problem.result_dtype]
        return Scratch(
            epoch_counter=shared((1,), torch.int64),
            ready=shared((world,), ints),
            done=shared((world,), ints),
            arrivals=shared((world, units), ints),
            inbox=shared(inbox, wire_dtype(problem, machine) if knobs.block_m else dtype),
            inbox_scales=shared(inbox[:2], torch.float32) if knobs.block_m and problem.wire == "fp8" else None,
            sent=own((world, units), ints),
            product=(shared if knobs.mode == "own_collective" else own)(product, dtype),
            partials=partials,
            tickets=tickets,
            phase=own((1,), ints) if knobs.phased else None,
        )

    def scratch_bytes(self, problem: GemmReduceScatter) -> int:
        """The inboxes of the tiles that stand out most, and the counters of the smallest."""
        rows, columns = _padded(problem.rows, 16), _padded(problem.n, 32)
        inbox = SLOTS * problem.world_size * rows * columns * problem.result_size
        arrivals = problem.world_size * math.ceil(rows / 16) * math.ceil(columns / 32) * 4
        return inbox + arrivals + (64 << 10)

    def plan(self, call: ScatterCall) -> list[Launch]:
        """``copy_engine``: the launch before its copies, the one after; ``own_collective``: the one after its GEMM."""
        if call.knobs.mode == "copy_engine":
            return [_enter(call), _sum_inbox(call)]
        if call.knobs.mode == "own_collective":
            return [_pull_sum(call)]
        if call.knobs.phased:
            return _in_phases(call)
        return [_gemm_scatter(call, _programs(call))]

    def run(self, call: ScatterCall, launches: list[Launch], heap: SymmetricHeap) -> Run:
        """Around the library's GEMM, or our kernel alone."""
        if call.knobs.mode == "copy_engine":
            return CopyEngine(
                call.problem, call.tensors, call.scratch, launches, heap,
                transfer_rows=call.knobs.transfer_rows, streams=call.knobs.gemm_streams,
            )  # fmt: skip
        if call.knobs.mode == "own_collective":
            return functools.partial(multiply_and_pull, call.problem, call.tensors, call.scratch.product, launches[0])
        return in_order(launches)

    def readable(
        self, problem: GemmReduceScatter, knobs: GemmReduceScatterKnobs, name: str, operand: torch.Tensor
    ) -> torch.Tensor:  # fmt: skip
        return readable(name, operand, apart=knobs.apart)

    def library(self, call: Call[GemmReduceScatter, GemmReduceScatterKnobs, SummedTensors, None]) -> Run:
        between = empty_launches(call.knobs.empty_launches)
        run = bulk_synchronous(call.problem, call.tensors, call.rank, call.group, between)
        return graphed(run) if call.knobs.launch == "graph" else run


KERNELS = GemmReduceScatterKernels()


def _padded(size: int, smallest: int) -> int:
    """The most that a dimension has once it is cut into whole blocks of ``smallest`` to LARGEST_BLOCK."""
    return max(smallest, min(size + LARGEST_BLOCK - 1, 1 << (size - 1).bit_length()))


def _common(call: ScatterCall) -> dict[str, Any]:
    return {
        "rank": call.rank, "heap_bases": call.bases, "epoch_counter": call.scratch.epoch_counter,
        "status": call.status, "spin_limit": call.spin_limit, "WORLD": call.problem.world_size,
    }  # fmt: skip


def _programs(call: ScatterCall) -> int:
    """One program a tile (or split of one), or persistent."""
    problem, knobs = call.problem, call.knobs
    programs = problem.world_size * knobs.tiles(problem.rows, problem.n) * knobs.split_k
    if knobs.schedule == "tile":
        return programs
    # The interpreter runs programs one after another: two of which one waits for the other's peers would hang.
    return min(programs, 1 if call.machine.is_interpreter else call.machine.compute_units)


def _in_phases(call: ScatterCall) -> list[Launch]:
    """The GEMM, then the sum: in one launch, whose last programs sum, or in two."""
    problem, knobs, scratch = call.problem, call.knobs, call.scratch
    producers, tiles = _programs(call), knobs.tiles(problem.rows, problem.n)
    in_all = {"producers": producers, "finishing": producers + tiles, "phase": scratch.phase, "ready": scratch.ready}
    if knobs.barrier:
        return [_gemm_scatter(call, producers + tiles, in_all)]
    gemm = _gemm_scatter(call, producers, in_all)
    names = device.sum_tiles_kernel.arg_names
    arguments = _common(call) | {name: gemm.arguments[name] for name in names if name in gemm.arguments}
    summing = Launch(device.sum_tiles_kernel, tiles, arguments, {"num_warps": knobs.num_warps})
    return [gemm, *empty_launches(knobs.empty_launches), summing]


def _gemm_scatter(call: ScatterCall, programs: int, phases: Mapping[str, Any] | None = None) -> Launch:
    """The fused kernel, or with ``phases`` the GEMM and maybe the sum behind it, of which only the latter waits."""
    problem, knobs, scratch = call.problem, call.knobs, call.scratch
    resident = None if knobs.schedule == "tile" or phases else programs
    arguments = {
        **knobs.common(problem, call.tensors, call.machine), **_common(call),
        "a": knobs.a_operand(call.tensors.a, in_two_parts=knobs.in_two_parts(problem, call.machine)),
        "M": problem.m, "N": problem.n, "K": problem.k_local, "rows": problem.rows, "inbox": scratch.inbox,
        "inbox_scales": scratch.inbox_scales, "arrivals": scratch.arrivals, "sent": scratch.sent,
        "partials": scratch.partials, "tickets": scratch.tickets, "SPLITS": knobs.split_k,
        "PULL": knobs.phased or knobs.mode == "pull", "ROTATE": knobs.peer_order == "rotate",
        "TRANSFER_TILES": knobs.transfer_tiles, "LATE": knobs.signals == "next_turn" and not knobs.phased,
        "FLATTEN": knobs.schedule == "flattened", "PHASED": knobs.phased, "MEMORY": knobs.handover == MEMORY,
        "trace": knobs.trace_of(programs, call.tensors.c), "residual": call.tensors.residual,
        "result": call.tensors.c,
        **(phases or dict.fromkeys(("producers", "finishing", "phase", "ready"))),
    }  # fmt: skip
    return Launch(device.gemm_scatter_kernel, programs, arguments, knobs.options, resident)


def _enter(call: ScatterCall) -> Launch:
    """All ranks wait for each other, on the device, until every inbox may be written to."""
    arguments = _common(call) | {"counters": call.scratch.ready, "trace": None, "FINISH": False}
    return Launch(barrier_kernel, 1, arguments, {"num_warps": 1})


def _sum_inbox(call: ScatterCall) -> Launch:
    """The sum of all parts of our rows, in our inbox."""
    scratch, rows = call.scratch, call.problem.rows
    own = scratch.product[call.rank * rows : (call.rank + 1) * rows]
    return _sum(call, device.sum_kernel, {"own": own, "inbox": scratch.inbox, "done": scratch.done})


def _pull_sum(call: ScatterCall) -> Launch:
    """The sum of all parts of our rows, where the library's GEMMs left them."""
    scratch = call.scratch
    arguments = {"product": scratch.product, "ready": scratch.ready, "done": scratch.done}
    # Elements from which on addresses are known to be multiples: a rank's rows begin at a multiple of ``elements``.
    elements = call.problem.rows * call.problem.n
    return _sum(call, device.pull_sum_kernel, arguments | {"HINT": math.gcd(elements, LONGEST_VECTOR)})


def _sum(call: ScatterCall, kernel: Any, arguments: dict[str, Any]) -> Launch:
    """Each program takes ``sum_block`` elements of C."""
    problem, tensors, block = call.problem, call.tensors, call.knobs.sum_block
    elements = problem.rows * problem.n
    bias = tensors.bias if tensors.bias is not None else tensors.c
    common = {
        **_common(call), "bias": bias, "residual": tensors.residual, "BIAS": tensors.bias is not None,
        "c": tensors.c, "elements": elements, "N": problem.n, "BLOCK": block,
    }  # fmt: skip
    return Launch(kernel, math.ceil(elements / block), common | arguments, {"num_warps": call.knobs.sum_warps})
