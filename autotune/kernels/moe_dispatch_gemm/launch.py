"""Launching dispatch + grouped GEMM: the scratch of each mode, its launch, and the library's ways.

Modes: ``bsp`` calls the library, ``push`` and ``pull`` one kernel of ours; ``unfused`` our dispatch alone, then our
grouped GEMM; ``own_collective`` our dispatch alone, then the library's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from autotune.heap.arena import SymmetricHeap
from autotune.kernels.launching.contract import Call, Kernels
from autotune.kernels.launching.graphs import graphed
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.scratch import poison_inbox
from autotune.kernels.launching.sealing import seal_launch
from autotune.kernels.launching.tensors import OPERAND_DTYPES, TORCH_DTYPES, Allocate, Run
from autotune.kernels.moe.grouped_launch import EPILOGUES, GroupedKnobs, GroupedOperands, grouped_gemm, scale_tensors
from autotune.kernels.moe.library import Scaling, grouped_product
from autotune.kernels.moe_dispatch import library
from autotune.kernels.moe_dispatch.exchange import Scratch, exchange_arguments, exchange_scratch
from autotune.kernels.moe_dispatch.launch import dispatch_launch
from autotune.kernels.moe_dispatch_gemm.device import dispatch_gemm_kernel
from autotune.kernels.moe_dispatch_gemm.problem import LAID_OUT, MoeDispatchGemm
from autotune.kernels.primitives.activate import activate_kernel
from autotune.machine import Machine

ACTIVATED = 1024
"""Elements of C that a program of the activation behind the library's GEMM computes."""

UNUSED = ("a", "gather", "scale_a", "K", "A_TMA")
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
    scale_x: torch.Tensor | None = None
    """fp32 [tokens, 1] or [tokens, hidden / 128]: x is fp8 then, as B is."""
    scale_b: torch.Tensor | None = None
    """fp32 [local experts, 1, columns] or [local experts, hidden / 128, columns / 128], stored as B is."""


@dataclass(frozen=True, kw_only=True)
class DispatchGemmKnobs(GroupedKnobs):
    """Defaults stand for knobs that a mode lacks; they have no effect there."""

    exchange: str = "all_gather"
    protocol: str = "signal"
    transfer_tokens: int = 1
    split: int = 1
    tile_order: str = "experts"
    layout_rows: int = 1
    layout_warps: int = 4

    @property
    def ll(self) -> bool:
        """Tokens do not travel by LL words where tiles read them as they are."""
        return self.mode in LAID_OUT and self.protocol == "ll"

    @property
    def routing_ll(self) -> bool:
        """True if the routing travels by the LL protocol."""
        return self.protocol == "ll"


@dataclass(frozen=True)
class GemmScratch(Scratch):
    """One config's memory between launches, zero at the start; what a dispatch has, and of modes that lay rows out,
    this rank's alone:
    """

    rows: torch.Tensor | None = None
    """[capacity, hidden]: the GEMM's A."""
    scale_rows: torch.Tensor | None = None
    """fp32 [capacity, scales of a row], of fp8."""

    def poison(self) -> None:
        super().poison()
        for rows in (self.rows, self.scale_rows):
            if rows is not None:
                poison_inbox(rows)


DispatchGemmCall = Call[MoeDispatchGemm, DispatchGemmKnobs, Tensors, GemmScratch]


class MoeDispatchGemmKernels(Kernels[MoeDispatchGemm, DispatchGemmKnobs, Tensors, GemmScratch]):
    knobs = DispatchGemmKnobs
    tensors_type = Tensors
    results = ("c", "offsets", "pairs", "row_gates")

    def tensors(self, problem: MoeDispatchGemm, shared: Allocate, own: Allocate) -> Tensors:
        dtype, ints, chosen = OPERAND_DTYPES[problem.dtype], torch.int32, (problem.tokens, problem.top_k)
        local, depth, columns = problem.local_experts, problem.hidden, problem.columns
        transposed = problem.b_order == "nk"
        scale_x, scale_b = scale_tensors(problem, problem.tokens, own)
        b = own((local, columns, depth) if transposed else (local, depth, columns), dtype)
        return Tensors(
            x=own((problem.tokens, depth), dtype),
            ids=own(chosen, ints),
            gates=own(chosen, torch.float32),
            b=b.transpose(1, 2) if transposed else b,
            c=own((problem.capacity, problem.width), TORCH_DTYPES[problem.result_dtype]),
            offsets=own((local + 1,), ints),
            pairs=own((problem.capacity,), ints),
            row_gates=own((problem.capacity,), torch.float32),
            scale_x=scale_x,
            scale_b=scale_b,
        )

    def scratch(
        self, problem: MoeDispatchGemm, knobs: DispatchGemmKnobs, machine: Machine, shared: Allocate, own: Allocate
    ) -> GemmScratch | None:
        """Counters and inboxes, and the rows that were laid out; None for ``bsp``."""
        if knobs.mode == "bsp":
            return None
        rows = scale_rows = None
        if knobs.mode in LAID_OUT:
            rows = own((problem.capacity, problem.hidden), OPERAND_DTYPES[problem.dtype])
            if problem.scaled:
                scale_rows = own((problem.capacity, problem.row_scales), torch.float32)
        return GemmScratch(**vars(exchange_scratch(problem, knobs, shared)), rows=rows, scale_rows=scale_rows)

    def scratch_bytes(self, problem: MoeDispatchGemm) -> int:
        return problem.exchange_bytes

    def read_by_peers(self, problem: MoeDispatchGemm, knobs: DispatchGemmKnobs) -> tuple[int, ...] | None:
        return (problem.tokens, problem.hidden) if knobs.mode == "pull" else None

    def also_read_by_peers(self, problem: MoeDispatchGemm, knobs: DispatchGemmKnobs) -> tuple[str, ...]:
        return ("scale_x",) if knobs.mode == "pull" and problem.scaled else ()

    def plan(self, call: DispatchGemmCall) -> list[Launch]:
        problem, knobs, tensors = call.problem, call.knobs, call.tensors
        if knobs.mode in LAID_OUT:
            return self._laid_out(call)
        operands = GroupedOperands(
            call.scratch.inbox, tensors.b, tensors.offsets, problem.capacity, tensors.pairs, problem.top_k,
            tensors.scale_x, tensors.scale_b, problem.scales,
        )  # fmt: skip
        gemm = knobs.grouped(
            operands, problem.dtype, epilogue=problem.epilogue, halves=problem.halves, fast_accum=problem.fast_accum
        )  # fmt: skip
        first, exchange = exchange_arguments(call, knobs.num_warps)
        arguments = {name: value for name, value in gemm.items() if name not in UNUSED} | exchange
        arguments |= {name: value for name, value in vars(tensors).items() if name not in ("b", "scale_b")}
        arguments["OWN_FIRST"] = knobs.tile_order == "own_first"
        tiles = knobs.grouped_programs(
            problem.capacity, problem.local_experts, problem.columns, call.machine.compute_units
        )
        return [Launch(dispatch_gemm_kernel, first + tiles, arguments, knobs.options)]

    def _laid_out(self, call: DispatchGemmCall) -> list[Launch]:
        """Our dispatch, and behind it our GEMM; or, if that is the library's, the seal of its result."""
        problem, knobs, tensors, rows, of_rows = (
            call.problem, call.knobs, call.tensors, call.scratch.rows, call.scratch.scale_rows
        )  # fmt: skip
        assert rows is not None
        given = {name: value for name, value in vars(tensors).items() if name not in ("b", "c", "scale_b")}
        laid_out = {**given, "rows": rows, "scale_rows": of_rows}
        if knobs.mode == "own_collective":
            return [dispatch_launch(call, laid_out, knobs.layout_warps), seal_launch(call.status, tensors.c)]
        dispatch = dispatch_launch(call, laid_out, knobs.layout_warps, tensors.c)
        operands = GroupedOperands(
            rows, tensors.b, tensors.offsets, problem.capacity, scale_a=of_rows, scale_b=tensors.scale_b,
            scales=problem.scales,
        )  # fmt: skip
        gemm = grouped_gemm(
            knobs, operands, tensors.c, problem.dtype, call.machine.compute_units, epilogue=problem.epilogue,
            halves=problem.halves, fast_accum=problem.fast_accum,
        )  # fmt: skip
        return [dispatch, gemm]

    def run(self, call: DispatchGemmCall, launches: list[Launch], heap: SymmetricHeap) -> Run:
        """Our kernels alone, or around the library's GEMM."""
        if call.knobs.mode != "own_collective":
            return super().run(call, launches, heap)
        dispatch, seal = launches
        problem, tensors, rows, of_rows = call.problem, call.tensors, call.scratch.rows, call.scratch.scale_rows
        assert rows is not None
        scaling = scaling_of(problem, tensors, of_rows)

        def run() -> None:
            dispatch.run()
            multiply(problem, rows, tensors.b, tensors.offsets, tensors.c, scaling)
            seal.run()

        return run

    def library(self, call: Call[MoeDispatchGemm, DispatchGemmKnobs, Tensors, None]) -> Run:
        """The library's dispatch, then its grouped GEMM, and what follows it in one kernel."""
        problem, tensors = call.problem, call.tensors

        def run() -> None:
            rows, of_rows, plan = library.dispatched(call, tensors.scale_x)
            scaling = scaling_of(problem, tensors, of_rows)
            multiply(problem, rows, tensors.b, plan.offsets, tensors.c[: rows.shape[0]], scaling)

        return graphed(run) if call.knobs.launch == "graph" else run


def scaling_of(problem: MoeDispatchGemm, tensors: Tensors, of_rows: torch.Tensor | None) -> Scaling | None:
    """The scales of laid-out rows and of B, as the library's grouped GEMM takes them."""
    if of_rows is None or tensors.scale_b is None:
        return None
    return Scaling(of_rows, tensors.scale_b, problem.scales, problem.fast_accum)


def multiply(
    problem: MoeDispatchGemm, rows: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor, c: torch.Tensor,
    scaling: Scaling | None,
) -> None:  # fmt: skip
    """C [rows, width] by the library's grouped GEMM of these rows, and the activation behind it: of rows that exist."""
    product = grouped_product(rows, b, offsets, scaling)
    if not problem.gated:
        c.copy_(product)
    elif len(rows):
        block = min(ACTIVATED, 1 << (problem.width - 1).bit_length())
        blocks = math.ceil(problem.width / block)
        activate_kernel[(len(rows) * blocks,)](
            product, c, None, problem.width, blocks, EPILOGUES[problem.epilogue], problem.halves, block, offsets[-1:]
        )


KERNELS = MoeDispatchGemmKernels()
