"""Our kernel alone: a finished tile travels at once, to every rank or to its owner."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from autotune.kernels.gemm.kept_tiles import keep_tiles
from autotune.kernels.gemm_all_reduce import device
from autotune.kernels.gemm_all_reduce.exchange import Exchange, exchange_arguments
from autotune.kernels.gemm_all_reduce.modes import Fused, ReduceTask
from autotune.kernels.gemm_all_reduce.problem import GemmAllReduce
from autotune.kernels.launching.contract import Call
from autotune.kernels.launching.gemm import Splits, SummedTensors, wire_dtype
from autotune.kernels.launching.one_program import empty_launches
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.tensors import TORCH_DTYPES, Allocate
from autotune.kernels.launching.way import Way


@dataclass(frozen=True, kw_only=True)
class Tiles(Exchange):
    splits: Splits


TilesCall = Call[GemmAllReduce, Fused, SummedTensors, Tiles]


class FusedWay(Way[GemmAllReduce, Fused, SummedTensors, Tiles]):
    def scratch(self, task: ReduceTask, mode: Fused, shared: Allocate, own: Allocate) -> Tiles:
        problem, dtype = task.problem, TORCH_DTYPES[task.problem.result_dtype]
        tiles, tile = mode.tiles(problem.m, problem.n), (mode.block_m, mode.block_n)
        return Tiles.of(
            mode, problem.world_size, dtype, tiles, tile, shared, wire_dtype(task) if problem.wire == "fp8" else None,
            splits=Splits.of(mode, problem.m, problem.n, own),
            parts=own((1, tiles, *tile), dtype) if mode.phased else None,
        )  # fmt: skip

    def launches(self, call: TilesCall) -> list[Launch]:
        problem, mode, tensors, scratch = call.problem, call.knobs, call.tensors, call.scratch
        tiles, separate = mode.tiles(problem.m, problem.n), mode.combine == "separate"
        persistent = mode.schedule == "persistent"
        programs = tiles * mode.split_k
        if persistent:
            programs = min(programs, call.machine.compute_units * mode.programs_per_unit)
        if mode.phased:
            return _in_phases(call, programs, tiles)
        combining = tiles if separate else 0
        arguments = {
            **mode.common(call.task, tensors), **exchange_arguments(call), "c": tensors.c,
            "a": mode.a_operand(tensors.a, in_two_parts=mode.in_two_parts(call.task)),
            **vars(scratch.splits), "M": problem.m, "N": problem.n,
            "K": problem.k_local, "gemm_programs": programs, "owned": self.owned(problem),
            "SEPARATE": separate, "SPLITS": mode.split_k, "trace": mode.trace_of(programs + combining, tensors.c),
        }  # fmt: skip
        resident = programs if persistent and mode.split_k > 1 and not separate else None
        return [Launch(device.gemm_all_reduce_kernel, programs + combining, arguments, mode.options, resident)]

    def owned(self, problem: Any) -> int | None:
        """Rows that each rank gets; None: all ranks get all."""
        return None

    def roundings(self, problem: GemmAllReduce) -> float:
        """Each part, and the sum."""
        return 2.0


def _in_phases(call: TilesCall, programs: int, tiles: int) -> list[Launch]:
    """For ``tune taxes``: the GEMM, then the all-reduce of the tiles that it has kept, column by column."""
    problem, mode, tensors = call.problem, call.knobs, call.tensors
    gemm = keep_tiles(call, programs, kept=call.scratch.parts, kept_scales=None, rows=problem.m, SLOTS=1, FLATTEN=False)
    common = mode.common(call.task, tensors)
    arguments = exchange_arguments(call) | {
        **{name: common[name] for name in ("bias", "BIAS", "BLOCK_M", "BLOCK_N")},
        "c": tensors.c, "parts": call.scratch.parts, "M": problem.m, "N": problem.n,
        "group_m": math.ceil(problem.m / mode.block_m),
    }  # fmt: skip
    exchange = Launch(device.all_reduce_kernel, tiles, arguments, {"num_warps": mode.num_warps})
    return [gemm, *empty_launches(mode.empty_launches), exchange]
