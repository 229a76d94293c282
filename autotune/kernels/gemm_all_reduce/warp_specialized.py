"""Warp specialization: a launch whose programs load, multiply and send by different warps, and by one shot sum, too; by
two shots the next launch does.
"""

from __future__ import annotations

import triton

from autotune.kernels.gemm.library import GemmWay
from autotune.kernels.gemm_all_reduce import device
from autotune.kernels.gemm_all_reduce.exchange import SHOTS, Exchange, exchange_arguments
from autotune.kernels.gemm_all_reduce.modes import ReduceTask, WarpSpecialized
from autotune.kernels.gemm_all_reduce.problem import GemmAllReduce
from autotune.kernels.launching.contract import Call
from autotune.kernels.launching.gemm import SummedTensors
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.specialized import sending_gemm
from autotune.kernels.launching.tensors import Allocate

SpecializedCall = Call[GemmAllReduce, WarpSpecialized, SummedTensors, Exchange]

SUMMED_BY_A_WARP = 2048
"""Elements of a tile: 64 for each thread."""


class WarpSpecializedWay(GemmWay[GemmAllReduce, WarpSpecialized, SummedTensors, Exchange]):
    def scratch(self, task: ReduceTask, mode: WarpSpecialized, shared: Allocate, own: Allocate) -> Exchange:
        problem, tile = task.problem, (mode.block_m, mode.block_n)
        tiles = mode.tiles(problem.m, problem.n)
        return Exchange.of(problem, mode.exchange, mode.protocol, tiles, tile, shared, parts=None)

    def launches(self, call: SpecializedCall) -> list[Launch]:
        gemm = sending_gemm(call, SHOTS[call.knobs.exchange])
        return [gemm] if call.knobs.exchange == "one_shot" else [gemm, _sum(call)]

    def roundings(self, problem: GemmAllReduce) -> float:
        """Each part, and the sum."""
        return 2.0


def _sum(call: SpecializedCall) -> Launch:
    problem, mode, tensors = call.problem, call.knobs, call.tensors
    arguments = {
        **exchange_arguments(call, mode.exchange), "c": tensors.c, "parts": None,
        "bias": tensors.bias if tensors.bias is not None else tensors.c, "BIAS": tensors.bias is not None,
        "M": problem.m, "N": problem.n, "group_m": mode.group_m, "BLOCK_M": mode.block_m, "BLOCK_N": mode.block_n,
    }  # fmt: skip
    warps = min(16, triton.next_power_of_2(max(4, mode.block_m * mode.block_n // SUMMED_BY_A_WARP)))
    return Launch(device.all_reduce_kernel, mode.tiles(problem.m, problem.n), arguments, {"num_warps": warps})
