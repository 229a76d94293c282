"""Launching dispatch + grouped GEMM: the scratch of each mode, its launch, and the library's ways.

Modes: ``bsp`` calls the library, ``push`` and ``pull`` one kernel of ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from autotune.kernels.launching.contract import Call, Kernels
from autotune.kernels.launching.graphs import graphed
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.tensors import OPERAND_DTYPES, Allocate, Run
from autotune.kernels.moe.grouped_launch import EPILOGUES, GroupedKnobs, GroupedOperands
from autotune.kernels.moe.library import grouped_product
from autotune.kernels.moe_dispatch import library
from autotune.kernels.moe_dispatch.exchange import Scratch, exchange_arguments, exchange_scratch
from autotune.kernels.moe_dispatch_gemm.device import dispatch_gemm_kernel
from autotune.kernels.moe_dispatch_gemm.problem import MoeDispatchGemm
from autotune.kernels.primitives.activate import activate_kernel
from autotune.machine import Machine

ACTIVATED = 1024
"""Elements of C that a program of the activation behind the library's GEMM computes."""

UNUSED = ("a", "gather", "scale_a", "scale_b", "K", "A_TMA", "PROMOTE", "SCALES")
"""Arguments of a grouped GEMM that this one does not have: its A is the inbox, by the plan."""


@dataclass(frozen=True)
class Tensors:
    """One rank's operands and results, all contiguous, but for B."""

    x: torch.Tensor
    """[tokens, hidden]."""
    ids: torch.Tensor
    """int32 [tokens, top_k]: -1 is none."""
    gates: torch.Tensor
    """fp32 [tokens, top_k]."""
    b: torch.Tensor
    """[local experts, hidden, columns], contiguous, or each expert's is the transpose of a contiguous matrix."""
    c: torch.Tensor
    """[capacity, width]."""
    offsets: torch.Tensor
    """int32 [local experts + 1]; this and the others are ``moe.routing.Plan``."""
    pairs: torch.Tensor
    """int32 [capacity]."""
    row_gates: torch.Tensor
    """fp32 [capacity]."""


@dataclass(frozen=True, kw_only=True)
class DispatchGemmKnobs(GroupedKnobs):
    """Defaults stand for knobs that a mode lacks; they have no effect there."""

    exchange: str = "all_gather"
    protocol: str = "signal"
    transfer_tokens: int = 1
    split: int = 1

    @property
    def ll(self) -> bool:
        """Tokens never travel by LL words: tiles read them as they are."""
        return False

    @property
    def routing_ll(self) -> bool:
        """True if the routing travels by the LL protocol."""
        return self.protocol == "ll"


DispatchGemmCall = Call[MoeDispatchGemm, DispatchGemmKnobs, Tensors, Scratch]


class MoeDispatchGemmKernels(Kernels[MoeDispatchGemm, DispatchGemmKnobs, Tensors, Scratch]):
    knobs = DispatchGemmKnobs
    tensors_type = Tensors
    results = ("c", "offsets", "pairs", "row_gates")

    def tensors(self, problem: MoeDispatchGemm, shared: Allocate, own: Allocate) -> Tensors:
        dtype, ints, chosen = OPERAND_DTYPES[problem.dtype], torch.int32, (problem.tokens, problem.top_k)
        local, depth, columns = problem.local_experts, problem.hidden, problem.columns
        transposed = problem.b_order == "nk"
        b = own((local, columns, depth) if transposed else (local, depth, columns), dtype)
        return Tensors(
            x=own((problem.tokens, depth), dtype),
            ids=own(chosen, ints),
            gates=own(chosen, torch.float32),
            b=b.transpose(1, 2) if transposed else b,
            c=own((problem.capacity, problem.width), dtype),
            offsets=own((local + 1,), ints),
            pairs=own((problem.capacity,), ints),
            row_gates=own((problem.capacity,), torch.float32),
        )

    def scratch(
        self, problem: MoeDispatchGemm, knobs: DispatchGemmKnobs, machine: Machine, shared: Allocate, own: Allocate
    ) -> Scratch | None:
        """Counters and inboxes; None for ``bsp``."""
        return None if knobs.mode == "bsp" else exchange_scratch(problem, knobs, shared)

    def scratch_bytes(self, problem: MoeDispatchGemm) -> int:
        return problem.exchange_bytes

    def read_by_peers(self, problem: MoeDispatchGemm, knobs: DispatchGemmKnobs) -> tuple[int, ...] | None:
        return (problem.tokens, problem.hidden) if knobs.mode == "pull" else None

    def plan(self, call: DispatchGemmCall) -> list[Launch]:
        problem, knobs, tensors = call.problem, call.knobs, call.tensors
        operands = GroupedOperands(
            call.scratch.inbox, tensors.b, tensors.offsets, problem.capacity, tensors.pairs, problem.top_k
        )
        gemm = knobs.grouped(operands, problem.dtype, epilogue=problem.epilogue, halves=problem.halves)
        first, exchange = exchange_arguments(call)
        arguments = {name: value for name, value in gemm.items() if name not in UNUSED} | exchange
        arguments |= {name: value for name, value in vars(tensors).items() if name != "b"}
        tiles = knobs.grouped_programs(
            problem.capacity, problem.local_experts, problem.columns, call.machine.compute_units
        )
        return [Launch(dispatch_gemm_kernel, first + tiles, arguments, knobs.options)]

    def library(self, call: Call[MoeDispatchGemm, DispatchGemmKnobs, Tensors, None]) -> Run:
        """The library's dispatch, then its grouped GEMM, and what follows it in one kernel."""
        problem, tensors, counted = call.problem, call.tensors, call.knobs.exchange == "all_to_all"
        dispatch = library.by_all_to_all if counted else library.by_all_gather

        def run() -> None:
            routing = library.gathered_routing(problem, tensors.ids, tensors.gates, call.group)
            rows, plan = dispatch(problem, tensors.x, routing, call.rank, call.group)
            tensors.offsets.copy_(plan.offsets)
            tensors.pairs.copy_(plan.pairs)
            tensors.row_gates.copy_(plan.gates)
            multiply(problem, rows, tensors.b, plan.offsets, tensors.c[: rows.shape[0]])

        return graphed(run) if call.knobs.launch == "graph" else run


def multiply(
    problem: MoeDispatchGemm, rows: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor, c: torch.Tensor
) -> None:
    """C [rows, width] by the library's grouped GEMM of these rows, and the activation behind it."""
    product = grouped_product(rows, b, offsets)
    if not problem.gated:
        c.copy_(product)
    elif len(rows):
        block = min(ACTIVATED, 1 << (problem.width - 1).bit_length())
        blocks = math.ceil(problem.width / block)
        activate_kernel[(len(rows) * blocks,)](
            product, c, None, problem.width, blocks, EPILOGUES[problem.epilogue], problem.halves, block
        )


KERNELS = MoeDispatchGemmKernels()
