"""Our kernel alone, whose GEMM gathers the rows of arrived tokens."""

from __future__ import annotations

from typing import TypeVar

from autotune.kernels.launching.contract import Call
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.tensors import Allocate
from autotune.kernels.launching.way import Way
from autotune.kernels.moe.grouped_launch import GroupedOperands, grouped_arguments
from autotune.kernels.moe_dispatch.exchange import PulledTokens, Scratch, Travel, exchange_arguments, exchange_scratch
from autotune.kernels.moe_dispatch_gemm.device import dispatch_gemm_kernel
from autotune.kernels.moe_dispatch_gemm.modes import DispatchGemmTask, Fused, Pull, Push
from autotune.kernels.moe_dispatch_gemm.problem import MoeDispatchGemm
from autotune.kernels.moe_dispatch_gemm.tensors import OF_GEMM, Tensors

UNUSED = ("a", "gather", "scale_a", "K", "A_TMA")
"""Arguments of a grouped GEMM that this one does not have: its A is the inbox, by the plan."""

F = TypeVar("F", bound=Fused)


class _FusedWay(Way[MoeDispatchGemm, F, Tensors, Scratch]):
    def travel(self, mode: F) -> Travel:
        """Tokens do not travel by LL words: tiles read them as they are."""
        return Travel()

    def scratch(self, task: DispatchGemmTask, mode: F, shared: Allocate, own: Allocate) -> Scratch:
        return exchange_scratch(task.problem, mode, self.travel(mode), shared)

    def launches(self, call: Call[MoeDispatchGemm, F, Tensors, Scratch]) -> list[Launch]:
        problem, mode, tensors = call.problem, call.knobs, call.tensors
        operands = GroupedOperands(
            call.scratch.inbox, tensors.b, tensors.offsets, problem.capacity, tensors.pairs, problem.top_k,
            tensors.scale_x, tensors.scale_b, problem.scales, tensors.bias,
        )  # fmt: skip
        gemm = grouped_arguments(
            mode, operands, problem.dtype, epilogue=problem.epilogue, halves=problem.halves,
            fast_accum=problem.fast_accum,
        )  # fmt: skip
        first, exchange = exchange_arguments(call, mode, self.travel(mode), mode.num_warps)
        arguments = {name: value for name, value in gemm.items() if name not in UNUSED} | exchange
        arguments |= {name: value for name, value in vars(tensors).items() if name not in OF_GEMM}
        arguments["OWN_FIRST"] = mode.tile_order == "own_first"
        tiles = mode.grouped_programs(
            problem.capacity, problem.local_experts, problem.columns, call.machine.compute_units
        )
        return [Launch(dispatch_gemm_kernel, first + tiles, arguments, mode.options)]

    def roundings(self, problem: MoeDispatchGemm) -> float:
        """An activation follows in fp32, of whose result the tolerance counts the rounding."""
        return 0.0 if problem.gated else 1.0


class PushWay(_FusedWay[Push]):
    def travel(self, mode: Push) -> Travel:
        return Travel(routing_ll=mode.protocol == "ll")


class PullWay(PulledTokens[MoeDispatchGemm, Pull, Tensors, Scratch], _FusedWay[Pull]):
    def travel(self, mode: Pull) -> Travel:
        return Travel(pull=True)
