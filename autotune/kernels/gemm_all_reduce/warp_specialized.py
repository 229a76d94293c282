"""Warp specialization: one launch whose programs load, multiply and send by different warps, and one that sums."""

from __future__ import annotations

import triton

from autotune.kernels.gemm.library import GemmWay
from autotune.kernels.gemm_all_reduce import device
from autotune.kernels.gemm_all_reduce.exchange import Exchange, exchange_arguments
from autotune.kernels.gemm_all_reduce.modes import ReduceTask, WarpSpecialized
from autotune.kernels.gemm_all_reduce.problem import GemmAllReduce
from autotune.kernels.launching.contract import Call
from autotune.kernels.launching.gemm import SummedTensors
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.specialized import OPTIONS, specialized
from autotune.kernels.launching.tensors import Allocate

SpecializedCall = Call[GemmAllReduce, WarpSpecialized, SummedTensors, Exchange]

SENDING_WARPS = 2
"""Of each program; a single one spills."""

SUMMED_BY_A_WARP = 2048
"""Elements of a tile: 64 for each thread."""


class WarpSpecializedWay(GemmWay[GemmAllReduce, WarpSpecialized, SummedTensors, Exchange]):
    def scratch(self, task: ReduceTask, mode: WarpSpecialized, shared: Allocate, own: Allocate) -> Exchange:
        problem = task.problem
        tiles = mode.tiles(problem.m, problem.n)
        return Exchange.of(
            problem, mode.exchange, mode.protocol, tiles, (mode.block_m, mode.block_n), shared, parts=None
        )  # fmt: skip

    def launches(self, call: SpecializedCall) -> list[Launch]:
        return [_gemm(call), _sum(call)]

    def roundings(self, problem: GemmAllReduce) -> float:
        """Each part, and the sum."""
        return 2.0


def _gemm(call: SpecializedCall) -> Launch:
    from autotune.kernels.gemm_all_reduce.specialized_kernel import multiply_and_send_kernel  # Gluon, which few need

    problem, mode = call.problem, call.knobs
    programs = min(mode.tiles(problem.m, problem.n), call.machine.compute_units)
    arguments = exchange_arguments(call, mode.exchange) | specialized(call.task, mode, call.tensors) | {
        "scale_a": call.tensors.scale_a, "M": problem.m, "N": problem.n, "K": problem.k_local,
        "STORED": mode.stored(call.task), "SENDING": SENDING_WARPS,
        "trace": mode.trace_of(programs, call.tensors.c),
    }  # fmt: skip
    its = {name: value for name, value in arguments.items() if name in multiply_and_send_kernel.arg_names}
    return Launch(multiply_and_send_kernel, programs, its, OPTIONS)


def _sum(call: SpecializedCall) -> Launch:
    problem, mode, tensors = call.problem, call.knobs, call.tensors
    arguments = {
        **exchange_arguments(call, mode.exchange), "c": tensors.c, "parts": None,
        "bias": tensors.bias if tensors.bias is not None else tensors.c, "BIAS": tensors.bias is not None,
        "M": problem.m, "N": problem.n, "group_m": mode.group_m, "BLOCK_M": mode.block_m, "BLOCK_N": mode.block_n,
    }  # fmt: skip
    warps = min(16, triton.next_power_of_2(max(4, mode.block_m * mode.block_n // SUMMED_BY_A_WARP)))
    return Launch(device.all_reduce_kernel, mode.tiles(problem.m, problem.n), arguments, {"num_warps": warps})
