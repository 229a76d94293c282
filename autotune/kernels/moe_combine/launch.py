"""Launching the combine: the scratch of each mode, its launch, and the library's ways.

Modes: ``bsp`` calls the library, ``push``, ``pull`` and ``one_shot`` one kernel of ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl

from autotune.dtypes import DTYPES
from autotune.kernels.launching.contract import Call, Kernels
from autotune.kernels.launching.graphs import graphed
from autotune.kernels.launching.knobs import Knobs
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.tensors import OPERAND_DTYPES, TORCH_DTYPES, Allocate, Run
from autotune.kernels.moe.routing import Plan
from autotune.kernels.moe_combine import device, library
from autotune.kernels.moe_combine.problem import MOST_INBOX_BYTES, CombinedProblem, MoeCombine
from autotune.kernels.moe_combine.scratch import Scratch, scratch_of
from autotune.machine import Machine
from autotune.sizes import round_up

MODES = {"push": device.PUSH, "pull": device.PULL, "one_shot": device.ONE_SHOT}
LONGEST_STEP = 1024
"""Rows that a program places at once."""
MOST_PLACING = 64
MOST_SPLIT = 8
ADDING_PER_UNIT = 4
"""Programs per compute unit that add up: each has few loads under way."""


@dataclass(frozen=True)
class Tensors:
    """One rank's operands and result, all contiguous."""

    rows: torch.Tensor
    """[capacity, hidden], by expert; with offsets, pairs and row_gates as ``moe.routing.Plan`` has them."""
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


@dataclass(frozen=True, kw_only=True)
class SumKnobs(Knobs):
    """The knobs with which rows are sent and summed. Defaults stand for those that a mode lacks."""

    launch: str = "eager"
    exchange: str = "reduce_scatter"
    protocol: str = "signal"
    peer_order: str = "rotate"
    comm_programs: int = 1
    transfer_tokens: int = 1
    split: int = 1
    copy_kib: int = 4
    num_warps: int = 4

    @property
    def way(self) -> str:
        """The way in which rows come home: the mode, in workloads that only combine."""
        return self.mode

    @property
    def ll(self) -> bool:
        """True if rows travel by the LL protocol."""
        return self.protocol == "ll"

    def placing(self, problem: CombinedProblem) -> int:
        return 0 if self.way == "one_shot" else min(MOST_PLACING, math.ceil(problem.capacity / LONGEST_STEP))

    def units(self, problem: CombinedProblem) -> int:
        """Parts of blocks of a rank's tokens."""
        return math.ceil(problem.tokens / self.transfer_tokens) * self.split

    def summing(self, problem: CombinedProblem) -> dict[str, Any]:
        """Arguments of every kernel that sends and sums."""
        return {
            "T": problem.tokens, "H": problem.hidden, "K": problem.top_k, "local": problem.local_experts,
            "WORLD": problem.world_size, "MODE": MODES[self.way].value, "ROTATE": self.peer_order == "rotate",
            "STEP": min(LONGEST_STEP, round_up(problem.capacity)), "TOKENS": self.transfer_tokens,
            "COLUMNS": columns_of(problem, self.copy_kib, self.transfer_tokens), "SPLIT": self.split,
            "CHOICES": round_up(problem.top_k), "TYPE": getattr(tl, DTYPES[problem.result_dtype].triton),
        }  # fmt: skip


CombineCall = Call[MoeCombine, SumKnobs, Tensors, Scratch]


class MoeCombineKernels(Kernels[MoeCombine, SumKnobs, Tensors, Scratch]):
    knobs = SumKnobs
    tensors_type = Tensors

    def tensors(self, problem: MoeCombine, shared: Allocate, own: Allocate) -> Tensors:
        ints, dtype = torch.int32, OPERAND_DTYPES[problem.dtype]
        return Tensors(
            rows=own((problem.capacity, problem.hidden), dtype),
            offsets=own((problem.local_experts + 1,), ints),
            pairs=own((problem.capacity,), ints),
            row_gates=own((problem.capacity,), torch.float32),
            ids=own((problem.tokens, problem.top_k), ints),
            out=own((problem.tokens, problem.hidden), TORCH_DTYPES[problem.dtype]),
        )

    def scratch(
        self, problem: MoeCombine, knobs: SumKnobs, machine: Machine, shared: Allocate, own: Allocate
    ) -> Scratch | None:
        """Counters, the inbox and the places of rows; None for ``bsp``."""
        if knobs.mode == "bsp":
            return None
        blocks = math.ceil(problem.tokens / knobs.transfer_tokens)
        return scratch_of(problem, knobs.mode, blocks * knobs.split, shared, own, ll=knobs.ll)

    def scratch_bytes(self, problem: MoeCombine) -> int:
        return scratch_bytes(problem)

    def plan(self, call: CombineCall) -> list[Launch]:
        return [combine_launch(call, {**vars(call.tensors), **vars(call.scratch)}, call.knobs.num_warps)]

    def library(self, call: Call[MoeCombine, SumKnobs, Tensors, None]) -> Run:
        """Sums by token where the rows are, then a collective; see ``library``."""
        problem, tensors = call.problem, call.tensors
        plan = Plan(tensors.offsets, tensors.pairs, tensors.row_gates)

        def run() -> None:
            library.combine(
                problem, tensors.rows, plan, tensors.ids, tensors.out, call.knobs.exchange, call.rank, call.group
            )

        return graphed(run) if call.knobs.launch == "graph" else run


def combine_launch(call: Call[Any, Any, Any, Any], tensors: dict[str, Any], num_warps: int) -> Launch:
    """A combine, alone or behind a library's GEMM: ``tensors`` are those of ``Tensors`` and of ``Scratch``."""
    problem, knobs = call.problem, call.knobs
    placing, units = knobs.placing(problem), knobs.units(problem)
    adding = min(ADDING_PER_UNIT * call.machine.compute_units, units)
    arguments: dict[str, Any] = {
        **tensors, **knobs.summing(problem), "placing": placing, "sending": knobs.comm_programs, "rank": call.rank,
        "heap_bases": call.bases, "status": call.status, "spin_limit": call.spin_limit, "LL": knobs.ll,
    }  # fmt: skip
    return Launch(device.combine_kernel, placing + knobs.comm_programs + adding, arguments, {"num_warps": num_warps})


def scratch_bytes(problem: CombinedProblem, groups: int = 1) -> int:
    """The largest inbox that the space allows, the counters of single tokens for each of ``groups`` of columns."""
    inboxes = (problem.inbox_bytes(mode, ll=ll) for mode, ll in (("push", False), ("one_shot", True)))
    counters = 2 * groups * problem.tokens * MOST_SPLIT * torch.int32.itemsize
    return min(max(inboxes), MOST_INBOX_BYTES) + counters + (64 << 10)


def columns_of(problem: CombinedProblem, copy_kib: int, rows: int) -> int:
    """Columns of a step of that many KiB over that many rows."""
    return min(copy_kib * 1024 // problem.result_size // rows, round_up(problem.hidden))


KERNELS = MoeCombineKernels()
