"""Launching grouped GEMM + combine: the scratch of each mode, its launch, and the library's ways.

Modes: ``bsp`` calls the library, ``push``, ``pull`` and ``one_shot`` one kernel of ours; ``unfused`` our grouped GEMM,
then our combine alone, which pushes or pulls; ``own_collective`` the library's, then that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from autotune.heap.arena import SymmetricHeap
from autotune.kernels.launching.contract import Call, Kernels
from autotune.kernels.launching.graphs import graphed
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.tensors import OPERAND_DTYPES, TORCH_DTYPES, Allocate, Run
from autotune.kernels.moe.grouped_launch import GroupedKnobs, GroupedOperands, grouped_gemm, scale_tensors
from autotune.kernels.moe.library import Scaling, grouped_product
from autotune.kernels.moe.routing import Plan
from autotune.kernels.moe_combine import library
from autotune.kernels.moe_combine.launch import ADDING_PER_UNIT, SumKnobs, combine_launch, scratch_bytes
from autotune.kernels.moe_combine.scratch import Scratch, scratch_of
from autotune.kernels.moe_gemm_combine.device import gemm_combine_kernel
from autotune.kernels.moe_gemm_combine.problem import APART, MoeGemmCombine
from autotune.machine import Machine

MOST_GROUPS = 8

UNUSED = ("gather", "N", "PER", "HALVES", "EPILOGUE")
"""Arguments of a grouped GEMM that this one does not have."""


OF_GEMM = ("a", "b", "scale_a", "scale_b")
"""Tensors that a combine alone does not take."""


@dataclass(frozen=True)
class Tensors:
    """One rank's operands and result, all contiguous, but for B."""

    a: torch.Tensor
    """[capacity, width], by expert; with offsets, pairs and row_gates as ``moe.routing.Plan`` has them."""
    b: torch.Tensor
    """[local experts, width, hidden], contiguous, or each expert's is the transpose of a contiguous matrix."""
    offsets: torch.Tensor
    """int32 [local experts + 1]."""
    pairs: torch.Tensor
    """int32 [capacity]."""
    row_gates: torch.Tensor
    """fp32 [capacity]."""
    ids: torch.Tensor
    """int32 [tokens, top_k], of this rank's tokens."""
    out: torch.Tensor
    """[tokens, hidden]."""
    scale_a: torch.Tensor | None = None
    """fp32 [capacity, 1] or [capacity, width / 128]: A is fp8 then, as B is."""
    scale_b: torch.Tensor | None = None
    """fp32 [local experts, 1, hidden] or [local experts, width / 128, hidden / 128], stored as B is."""


@dataclass(frozen=True)
class GemmScratch(Scratch):
    """One config's memory between launches, zero at the start; what a combine has, and of the GEMM:"""

    ready: torch.Tensor
    """int32 [groups], on the heap: groups of columns whose products are there, by launch."""
    tickets: torch.Tensor
    """int32 [groups], this rank's alone: finished tiles of a group, zero between launches."""
    y: torch.Tensor
    """[capacity, hidden], this rank's alone: products; empty in ``one_shot`` and ``own_collective``."""

    def poison(self) -> None:
        super().poison()
        self.y.fill_(math.nan)


@dataclass(frozen=True, kw_only=True)
class GemmCombineKnobs(SumKnobs, GroupedKnobs):
    """Defaults stand for knobs that a mode lacks; they have no effect there."""

    column_groups: int = 1
    combine: str = "push"
    sum_warps: int = 4

    @property
    def way(self) -> str:
        return self.combine if self.mode in APART else self.mode

    def gemm_programs(self, problem: MoeGemmCombine, machine: Machine) -> int:
        """Programs of the GEMM; where sums of the first columns travel beside it, it leaves room to who sends."""
        units = machine.compute_units * self.programs_per_unit - (self.column_groups > 1) * self.comm_programs
        tiles = self.most_tiles(problem.capacity, problem.local_experts, problem.hidden)
        return max(1, min(tiles, units))


GemmCombineCall = Call[MoeGemmCombine, GemmCombineKnobs, Tensors, GemmScratch]


class MoeGemmCombineKernels(Kernels[MoeGemmCombine, GemmCombineKnobs, Tensors, GemmScratch]):
    knobs = GemmCombineKnobs
    tensors_type = Tensors

    def tensors(self, problem: MoeGemmCombine, shared: Allocate, own: Allocate) -> Tensors:
        ints, dtype = torch.int32, OPERAND_DTYPES[problem.dtype]
        local, depth, columns = problem.local_experts, problem.width, problem.hidden
        transposed = problem.b_order == "nk"
        scale_a, scale_b = scale_tensors(problem, problem.capacity, own)
        b = own((local, columns, depth) if transposed else (local, depth, columns), dtype)
        return Tensors(
            a=own((problem.capacity, depth), dtype),
            b=b.transpose(1, 2) if transposed else b,
            offsets=own((local + 1,), ints),
            pairs=own((problem.capacity,), ints),
            row_gates=own((problem.capacity,), torch.float32),
            ids=own((problem.tokens, problem.top_k), ints),
            out=own((problem.tokens, columns), TORCH_DTYPES[problem.result_dtype]),
            scale_a=scale_a,
            scale_b=scale_b,
        )

    def scratch(
        self, problem: MoeGemmCombine, knobs: GemmCombineKnobs, machine: Machine, shared: Allocate, own: Allocate
    ) -> GemmScratch | None:
        """Counters, the inbox, the places of rows and the products; None for ``bsp``."""
        if knobs.mode == "bsp":
            return None
        groups, rows = knobs.column_groups, problem.capacity if knobs.mode in ("push", "pull", "unfused") else 0
        combine = scratch_of(problem, knobs.way, knobs.units(problem), shared, own, ll=knobs.ll, groups=groups)
        return GemmScratch(
            **vars(combine),
            ready=shared((groups,), torch.int32),
            tickets=own((groups,), torch.int32),
            y=own((rows, problem.hidden), TORCH_DTYPES[problem.result_dtype]),
        )

    def scratch_bytes(self, problem: MoeGemmCombine) -> int:
        return scratch_bytes(problem, MOST_GROUPS)

    def plan(self, call: GemmCombineCall) -> list[Launch]:
        problem, knobs, tensors, scratch = call.problem, call.knobs, call.tensors, call.scratch
        operands = GroupedOperands(
            tensors.a, tensors.b, tensors.offsets, problem.capacity, scale_a=tensors.scale_a, scale_b=tensors.scale_b,
            scales=problem.scales,
        )  # fmt: skip
        if knobs.mode in APART:
            return self._apart(call, operands)
        gemm = knobs.grouped(operands, problem.dtype, fast_accum=problem.fast_accum)
        gemm["depth"] = gemm.pop("K")
        placing, gemm_programs = knobs.placing(problem), knobs.gemm_programs(problem, call.machine)
        sending = 0 if knobs.mode == "one_shot" else knobs.comm_programs
        adding = min(ADDING_PER_UNIT * call.machine.compute_units, knobs.units(problem))
        arguments: dict[str, Any] = {
            **vars(tensors), **vars(scratch), **{name: each for name, each in gemm.items() if name not in UNUSED},
            **knobs.summing(problem), "placing": placing, "gemm_programs": gemm_programs, "sending": sending,
            "GROUPS": knobs.column_groups, "rank": call.rank, "heap_bases": call.bases, "status": call.status,
            "spin_limit": call.spin_limit,
            "LL": knobs.ll,
        }  # fmt: skip
        programs = placing + gemm_programs + sending + adding
        return [Launch(gemm_combine_kernel, programs, arguments, knobs.options)]

    def _apart(self, call: GemmCombineCall, operands: GroupedOperands) -> list[Launch]:
        """Our combine, and before it our GEMM, unless that is the library's."""
        problem, knobs, scratch = call.problem, call.knobs, call.scratch
        # The library's GEMM will say where its rows are, see ``run``: at an aligned address, as nothing is.
        given = {name: value for name, value in vars(call.tensors).items() if name not in OF_GEMM}
        given |= {each.name: getattr(scratch, each.name) for each in fields(Scratch)}
        combine = combine_launch(call, {**given, "rows": scratch.y}, knobs.sum_warps)
        if knobs.mode == "own_collective":
            return [combine]
        units = call.machine.compute_units
        return [grouped_gemm(knobs, operands, scratch.y, problem.dtype, units, fast_accum=problem.fast_accum), combine]

    def run(self, call: GemmCombineCall, launches: list[Launch], heap: SymmetricHeap) -> Run:
        """Our kernels alone, or behind the library's GEMM."""
        if call.knobs.mode != "own_collective":
            return super().run(call, launches, heap)
        tensors, scaling, (launch,) = call.tensors, scaling_of(call.problem, call.tensors), launches

        def run() -> None:
            rows = grouped_product(tensors.a, tensors.b, tensors.offsets, scaling)
            replace(launch, arguments={**launch.arguments, "rows": rows}).run()

        return run

    def library(self, call: Call[MoeGemmCombine, GemmCombineKnobs, Tensors, None]) -> Run:
        """The library's grouped GEMM, then sums by token where the rows are, and a collective."""
        problem, tensors = call.problem, call.tensors
        plan, scaling = Plan(tensors.offsets, tensors.pairs, tensors.row_gates), scaling_of(problem, tensors)

        def run() -> None:
            rows = grouped_product(tensors.a, tensors.b, tensors.offsets, scaling)
            library.combine(problem, rows, plan, tensors.ids, tensors.out, call.knobs.exchange, call.rank, call.group)

        return graphed(run) if call.knobs.launch == "graph" else run


def scaling_of(problem: MoeGemmCombine, tensors: Tensors) -> Scaling | None:
    """The scales of the operands, as the library's grouped GEMM takes them."""
    if tensors.scale_a is None or tensors.scale_b is None:
        return None
    return Scaling(tensors.scale_a, tensors.scale_b, problem.scales, problem.fast_accum)


KERNELS = MoeGemmCombineKernels()
