"""Launching the dispatch: the scratch of each mode, its launch, and the library's ways.

Modes: ``bsp`` calls the library, ``push`` and ``pull`` one kernel of ours.
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
from autotune.kernels.launching.scratch import poison_inbox
from autotune.kernels.launching.tensors import OPERAND_DTYPES, Allocate, Run
from autotune.kernels.moe.problem import SLOTS
from autotune.kernels.moe_dispatch import library
from autotune.kernels.moe_dispatch.device import dispatch_kernel
from autotune.kernels.moe_dispatch.problem import MoeDispatch
from autotune.machine import Machine

LONGEST_STEP = 2048
"""Pairs of the routing that a program sends, or plans, at once."""
MOST_ROUTING_PARTS = 8
"""Programs that send the routing."""
ROWS_A_UNIT = 4
"""Programs per compute unit that lay rows out: each has few loads under way."""


@dataclass(frozen=True)
class Tensors:
    """One rank's operands and results, all contiguous."""

    x: torch.Tensor
    """[tokens, hidden]."""
    ids: torch.Tensor
    """int32 [tokens, top_k]: those of a token differ, except -1."""
    gates: torch.Tensor
    """fp32 [tokens, top_k]."""
    rows: torch.Tensor
    """[capacity, hidden]."""
    offsets: torch.Tensor
    """int32 [local experts + 1]; this and the others are ``moe.routing.Plan``."""
    pairs: torch.Tensor
    """int32 [capacity]."""
    row_gates: torch.Tensor
    """fp32 [capacity]."""


@dataclass(frozen=True)
class Scratch:
    """One config's memory between launches, zero at the start, on the heap."""

    epoch_counter: torch.Tensor
    """int64 [1]: see ``primitives/counters.py``."""
    status: torch.Tensor
    """int32 [1]: 1 once a wait timed out."""
    planned: torch.Tensor
    """int32 [2]: experts whose rows are listed, over all launches that used the slot."""
    done: torch.Tensor
    """int32 [world_size], ``pull``: programs of each rank that have read all that they will."""
    routings: torch.Tensor
    """int32 [2, world_size]: parts of each rank's routing that have arrived."""
    arrivals: torch.Tensor
    """int32 [2, world_size, blocks]: parts of each rank's blocks of tokens that have arrived."""
    routed: torch.Tensor
    """int32 or, as LL words, int64 [2, world_size, 2, tokens * top_k]: ids and gates."""
    inbox: torch.Tensor
    """[2, world_size, tokens, hidden] in the element type, or int64 as LL words."""

    def poison(self) -> None:
        """Fill with what a right launch writes before it reads it."""
        self.routed.fill_(-1 if self.routed.dtype is torch.int32 else 0)
        poison_inbox(self.inbox)


@dataclass(frozen=True, kw_only=True)
class DispatchKnobs(Knobs):
    """Defaults stand for knobs that a mode lacks; they have no effect there."""

    launch: str = "eager"
    exchange: str = "all_gather"
    protocol: str = "signal"
    comm_programs: int = 1
    transfer_tokens: int = 1
    split: int = 1
    copy_kib: int = 4
    layout_rows: int = 1
    num_warps: int = 4

    @property
    def ll(self) -> bool:
        """True if routing and tokens travel by the LL protocol."""
        return self.protocol == "ll"


DispatchCall = Call[MoeDispatch, DispatchKnobs, Tensors, Scratch]


class MoeDispatchKernels(Kernels[MoeDispatch, DispatchKnobs, Tensors, Scratch]):
    knobs = DispatchKnobs
    tensors_type = Tensors
    results = ("rows", "offsets", "pairs", "row_gates")

    def tensors(self, problem: MoeDispatch, shared: Allocate, own: Allocate) -> Tensors:
        dtype, ints, chosen = OPERAND_DTYPES[problem.dtype], torch.int32, (problem.tokens, problem.top_k)
        return Tensors(
            x=own((problem.tokens, problem.hidden), dtype),
            ids=own(chosen, ints),
            gates=own(chosen, torch.float32),
            rows=own((problem.capacity, problem.hidden), dtype),
            offsets=own((problem.local_experts + 1,), ints),
            pairs=own((problem.capacity,), ints),
            row_gates=own((problem.capacity,), torch.float32),
        )

    def scratch(
        self, problem: MoeDispatch, knobs: DispatchKnobs, machine: Machine, shared: Allocate, own: Allocate
    ) -> Scratch | None:
        """Counters and inboxes; None for ``bsp``."""
        if knobs.mode == "bsp":
            return None
        ints, world, wire = torch.int32, problem.world_size, torch.int64 if knobs.ll else None
        per_word = 4 // problem.element_size if knobs.ll else 1
        pairs = problem.tokens * problem.top_k
        return Scratch(
            epoch_counter=shared((1,), torch.int64),
            status=shared((1,), ints),
            planned=shared((SLOTS,), ints),
            done=shared((world,), ints),
            routings=shared((SLOTS, world), ints),
            arrivals=shared((SLOTS, world, math.ceil(problem.tokens / knobs.transfer_tokens)), ints),
            routed=shared((SLOTS, world, 2, pairs), wire or ints),
            inbox=shared(
                (SLOTS, world, problem.tokens, problem.hidden // per_word), wire or OPERAND_DTYPES[problem.dtype]
            ),
        )

    def scratch_bytes(self, problem: MoeDispatch) -> int:
        """The inboxes as LL words, and the counters of single tokens."""
        routed = SLOTS * 2 * problem.all_pairs * torch.int64.itemsize
        counters = SLOTS * problem.world_size * problem.tokens * torch.int32.itemsize
        return problem.inbox_bytes(ll=True) + routed + counters + (64 << 10)

    def read_by_peers(self, problem: MoeDispatch, knobs: DispatchKnobs) -> tuple[int, ...] | None:
        return (problem.tokens, problem.hidden) if knobs.mode == "pull" else None

    def plan(self, call: DispatchCall) -> list[Launch]:
        problem, knobs, scratch = call.problem, call.knobs, call.scratch
        pairs = problem.tokens * problem.top_k
        step = min(LONGEST_STEP, _power(problem.all_pairs))
        parts = min(MOST_ROUTING_PARTS, math.ceil(pairs / step))
        laying = min(ROWS_A_UNIT * call.machine.compute_units, math.ceil(problem.capacity / knobs.layout_rows))
        arguments: dict[str, Any] = {
            **vars(call.tensors), **vars(scratch), "T": problem.tokens, "H": problem.hidden, "K": problem.top_k,
            "local": problem.local_experts, "capacity": problem.capacity, "routing_parts": parts,
            "comm_programs": knobs.comm_programs, "rank": call.rank, "heap_bases": call.bases,
            "spin_limit": call.spin_limit, "TYPE": getattr(tl, DTYPES[problem.dtype].triton),
            "WORLD": problem.world_size, "PULL": knobs.mode == "pull", "LL": knobs.ll, "STEP": step,
            "TOKENS": knobs.transfer_tokens, "COLUMNS": columns_of(problem, knobs.copy_kib, knobs.transfer_tokens),
            "SPLIT": knobs.split, "CHOICES": _power(problem.top_k), "ROWS": knobs.layout_rows,
            "ROW_COLUMNS": columns_of(problem, knobs.copy_kib, knobs.layout_rows),
        }  # fmt: skip
        programs = parts + knobs.comm_programs + problem.local_experts + laying
        return [Launch(dispatch_kernel, programs, arguments, {"num_warps": knobs.num_warps})]

    def library(self, call: Call[MoeDispatch, DispatchKnobs, Tensors, None]) -> Run:
        """The host reads the counts of an all-to-all; an all-gather needs none."""
        problem, tensors, counted = call.problem, call.tensors, call.knobs.exchange == "all_to_all"
        dispatch = library.by_all_to_all if counted else library.by_all_gather

        def run() -> None:
            routing = library.gathered_routing(problem, tensors.ids, tensors.gates, call.group)
            rows, plan = dispatch(problem, tensors.x, routing, call.rank, call.group)
            tensors.rows[: rows.shape[0]].copy_(rows)
            tensors.offsets.copy_(plan.offsets)
            tensors.pairs.copy_(plan.pairs)
            tensors.row_gates.copy_(plan.gates)

        return graphed(run) if call.knobs.launch == "graph" else run


def columns_of(problem: MoeDispatch, copy_kib: int, rows: int) -> int:
    """Columns of a step of that many KiB over that many rows."""
    return min(copy_kib * 1024 // problem.element_size // rows, _power(problem.hidden))


def _power(number: int) -> int:
    """The power of two from ``number`` on."""
    return 1 << (number - 1).bit_length()


KERNELS = MoeDispatchKernels()
