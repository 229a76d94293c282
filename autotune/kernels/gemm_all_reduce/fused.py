"""Our kernel alone: a finished tile travels at once, to every rank or to its owner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from autotune.kernels.gemm.library import GemmWay
from autotune.kernels.gemm_all_reduce import device
from autotune.kernels.gemm_all_reduce.exchange import Exchange, exchange_arguments
from autotune.kernels.gemm_all_reduce.modes import Fused, ReduceTask
from autotune.kernels.gemm_all_reduce.problem import GemmAllReduce
from autotune.kernels.launching.contract import Call
from autotune.kernels.launching.empty import empty_launches
from autotune.kernels.launching.gemm import SummedTensors, wire_dtype
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.tensors import TORCH_DTYPES, Allocate


@dataclass(frozen=True)
class Tiles(Exchange):
    """Of these ``ready`` alone lies on the heap."""

    partials: torch.Tensor
    """fp32 [tiles * splits, block_m, block_n], like the tickets; see ``join_splits``."""
    tickets: torch.Tensor
    """int32 [tiles]"""
    ready: torch.Tensor | None
    """int32 [world_size], for ``tune taxes``: ranks that have ended their GEMM."""
    phase: torch.Tensor | None
    """int32 [1], for ``tune taxes``: see ``end_phase``."""


TilesCall = Call[GemmAllReduce, Fused, SummedTensors, Tiles]


class FusedWay(GemmWay[GemmAllReduce, Fused, SummedTensors, Tiles]):
    def scratch(self, task: ReduceTask, mode: Fused, shared: Allocate, own: Allocate) -> Tiles:
        problem, phased, ints = task.problem, mode.phased, torch.int32
        tiles, tile = mode.tiles(problem.m, problem.n), (mode.block_m, mode.block_n)
        partials, tickets = mode.partials(problem.m, problem.n, own)
        return Tiles.of(
            problem, mode.mode, mode.protocol, tiles, tile, shared,
            wire_dtype(problem, task.machine) if problem.wire == "fp8" else None,
            partials=partials, tickets=tickets,
            ready=shared((problem.world_size,), ints) if phased else None,
            phase=own((1,), ints) if phased else None,
            parts=own((1, tiles, *tile), TORCH_DTYPES[problem.result_dtype]) if phased else None,
        )  # fmt: skip

    def launches(self, call: TilesCall) -> list[Launch]:
        problem, mode, tensors, scratch = call.problem, call.knobs, call.tensors, call.scratch
        tiles, separate, persistent = _tiles(call), mode.combine == "separate", mode.schedule == "persistent"
        programs = tiles * mode.split_k
        if persistent:
            programs = min(programs, call.machine.compute_units * mode.programs_per_unit)
        combining = tiles if separate or mode.barrier else 0
        arguments = {
            **mode.common(problem, tensors, call.machine), **exchange_arguments(call, mode.mode), "c": tensors.c,
            "a": mode.a_operand(tensors.a, in_two_parts=mode.in_two_parts(problem, call.machine)),
            "partials": scratch.partials, "tickets": scratch.tickets, "M": problem.m, "N": problem.n,
            "K": problem.k_local, "gemm_programs": programs, "SEPARATE": separate, "SPLITS": mode.split_k,
            "PHASED": mode.phased, "ready": scratch.ready, "phase": scratch.phase, "finishing": None,
            "trace": mode.trace_of(programs + combining, tensors.c),
        }  # fmt: skip
        if mode.phased:
            return _in_phases(call, programs, arguments)
        resident = programs if persistent and mode.split_k > 1 and not separate else None
        return [Launch(device.gemm_all_reduce_kernel, programs + combining, arguments, mode.options, resident)]

    def roundings(self, problem: GemmAllReduce) -> float:
        """Each part, and the sum."""
        return 2.0


def _tiles(call: TilesCall) -> int:
    return call.knobs.tiles(call.problem.m, call.problem.n)


def _in_phases(call: TilesCall, gemm_programs: int, fused: dict[str, Any]) -> list[Launch]:
    """The GEMM, then the all-reduce: in one launch, whose last programs exchange, or in two."""
    mode, tiles = call.knobs, _tiles(call)
    arguments = {**fused, "SEPARATE": True, "finishing": gemm_programs + tiles}
    if mode.barrier:
        return [Launch(device.gemm_all_reduce_kernel, gemm_programs + tiles, arguments, mode.options)]
    kernel = device.all_reduce_kernel
    exchange = {name: arguments[name] for name in kernel.arg_names if name in arguments}
    return [
        Launch(device.gemm_all_reduce_kernel, gemm_programs, {**arguments, "ready": None}, mode.options),
        *empty_launches(mode.empty_launches),
        Launch(kernel, tiles, {**exchange, "first": -1}, {"num_warps": mode.num_warps}),
    ]
