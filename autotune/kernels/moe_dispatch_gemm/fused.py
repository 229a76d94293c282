"""Our kernel alone, whose GEMM gathers the rows of arrived tokens. Its tiles read tokens as they are: not by words."""

from __future__ import annotations

from dataclasses import replace

from autotune.kernels.launching.contract import Call
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.tensors import Allocate
from autotune.kernels.moe.grouped_launch import GroupedOperands, grouped_arguments
from autotune.kernels.moe_dispatch.exchange import ExchangeWay, Scratch, exchange_arguments, exchange_scratch
from autotune.kernels.moe_dispatch_gemm.device import dispatch_gemm_kernel
from autotune.kernels.moe_dispatch_gemm.modes import DispatchGemmTask, Fused
from autotune.kernels.moe_dispatch_gemm.problem import MoeDispatchGemm
from autotune.kernels.moe_dispatch_gemm.tensors import OF_GEMM, Tensors

UNUSED = ("a", "gather", "scale_a", "K", "A_TMA")
"""Arguments of a grouped GEMM that this one does not have: its A is the inbox, by the plan."""


class FusedWay(ExchangeWay[MoeDispatchGemm, Fused, Tensors, Scratch]):
    def scratch(self, task: DispatchGemmTask, mode: Fused, shared: Allocate, own: Allocate) -> Scratch:
        return exchange_scratch(task.problem, mode, shared, only_routing_by_words=True)

    def launches(self, call: Call[MoeDispatchGemm, Fused, Tensors, Scratch]) -> list[Launch]:
        problem, mode, tensors = call.problem, call.knobs, call.tensors
        operands = GroupedOperands.of(problem, call.scratch.inbox, tensors.scale_x, tensors)
        gemm = grouped_arguments(mode, replace(operands, gather=tensors.pairs, per=problem.top_k))
        first, exchange = exchange_arguments(call, mode.num_warps, only_routing_by_words=True)
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
