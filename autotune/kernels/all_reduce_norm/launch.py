"""Launching all-reduce + residual + RMSNorm: the scratch of each mode, its launches, and the library's way.

Modes: ``bsp`` calls the library for everything, ``library_collective`` its all-reduce and then one kernel of ours, and
``one_shot`` and ``two_shot`` one kernel of ours for all of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl

from autotune.dtypes import DTYPES
from autotune.heap.arena import SymmetricHeap
from autotune.kernels.all_reduce_norm import device
from autotune.kernels.all_reduce_norm.problem import MOST_INBOX_BYTES, SLOTS, AllReduceNorm
from autotune.kernels.launching.contract import Call, Kernels
from autotune.kernels.launching.graphs import graphed
from autotune.kernels.launching.knobs import Knobs
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.scratch import poison_inbox, wire_type
from autotune.kernels.launching.tensors import TORCH_DTYPES, Allocate, Run
from autotune.kernels.primitives.protocols import PROTOCOLS
from autotune.machine import Machine
from autotune.sizes import round_up

MODES = {"one_shot": device.ONE_SHOT, "two_shot": device.TWO_SHOT}
LARGEST_BLOCK = 16


@dataclass(frozen=True)
class Tensors:
    """One rank's operands and results, all contiguous: [m, n], and the weight [n]."""

    x: torch.Tensor
    residual: torch.Tensor
    weight: torch.Tensor
    normed: torch.Tensor
    total: torch.Tensor


@dataclass(frozen=True)
class Scratch:
    """One config's memory between launches, zero at the start, on the heap."""

    epoch_counter: torch.Tensor
    """int64 [1]: see ``primitives/counters.py``."""
    arrivals: torch.Tensor
    """int32 [2, blocks]: parts of a block that have arrived, over all launches that used the slot."""
    returns: torch.Tensor
    """int32 [2, blocks], ``two_shot``: sums of a block that have arrived."""
    inbox: torch.Tensor
    """Parts of blocks, one after the other: in the element type, or as words, see ``wire_type``."""
    sums: torch.Tensor
    """Sums of blocks, ``two_shot``, 2 * blocks of them: likewise."""

    def poison(self) -> None:
        """Fill with NaN what a right launch writes before it reads it."""
        for inbox in (self.inbox, self.sums):
            poison_inbox(inbox)


@dataclass(frozen=True, kw_only=True)
class NormKnobs(Knobs):
    """Defaults stand for knobs that a mode lacks; they have no effect there."""

    launch: str = "eager"
    norm_rows: int = 1
    norm_warps: int = 4
    senders: int = 0
    protocol: str = "signal"

    @property
    def options(self) -> dict[str, int]:
        return {"num_warps": self.norm_warps}


NormCall = Call[AllReduceNorm, NormKnobs, Tensors, Scratch]


class AllReduceNormKernels(Kernels[AllReduceNorm, NormKnobs, Tensors, Scratch]):
    knobs = NormKnobs
    tensors_type = Tensors
    results = ("normed", "total")

    def tensors(self, problem: AllReduceNorm, shared: Allocate, own: Allocate) -> Tensors:
        shape, dtype = (problem.m, problem.n), TORCH_DTYPES[problem.dtype]
        return Tensors(
            own(shape, dtype), own(shape, dtype), own(shape[1:], dtype), own(shape, dtype), own(shape, dtype)
        )

    def scratch(
        self, problem: AllReduceNorm, knobs: NormKnobs, machine: Machine, shared: Allocate, own: Allocate
    ) -> Scratch | None:
        """Counters, inboxes and sums; None for ``bsp``."""
        if knobs.mode == "bsp":
            return None
        ints, blocks = torch.int32, _blocks(problem, knobs) if knobs.mode in MODES else 0
        wire = wire_type(knobs.protocol, TORCH_DTYPES[problem.dtype])
        per_word = 4 // problem.element_size if knobs.protocol == "ll" else 1
        in_all = problem.inbox_bytes(knobs.mode, knobs.norm_rows, knobs.protocol) // wire.itemsize if blocks else 0
        two_shot = knobs.mode == "two_shot"
        in_sums = SLOTS * blocks * knobs.norm_rows * problem.n // per_word if two_shot else 0
        return Scratch(
            epoch_counter=shared((1,), torch.int64),
            arrivals=shared((SLOTS, blocks), ints),
            returns=shared((SLOTS, blocks if two_shot else 0), ints),
            inbox=shared((in_all - in_sums,), wire),
            sums=shared((in_sums,), wire),
        )

    def scratch_bytes(self, problem: AllReduceNorm) -> int:
        """The largest inbox that the space allows, and the counters of single rows."""
        block_m = min(LARGEST_BLOCK, round_up(problem.m))
        inboxes = (problem.inbox_bytes(mode, block_m, "ll") for mode in MODES)
        return min(max(inboxes), MOST_INBOX_BYTES) + 2 * SLOTS * problem.m * torch.int32.itemsize + (64 << 10)

    def plan(self, call: NormCall) -> list[Launch]:
        problem, knobs, scratch = call.problem, call.knobs, call.scratch
        if knobs.mode == "library_collective":
            return [norm_launch(problem, knobs, call.tensors, _summed(problem, call.tensors))]
        blocks, arguments = _blocks(problem, knobs), _arguments(problem, knobs, call.tensors)
        arguments |= {
            "inbox": scratch.inbox, "sums": scratch.sums, "rank": call.rank, "heap_bases": call.bases,
            "epoch_counter": scratch.epoch_counter, "arrivals": scratch.arrivals, "returns": scratch.returns,
            "status": call.status, "spin_limit": call.spin_limit, "WORLD": problem.world_size,
            "MODE": MODES[knobs.mode].value, "PROTOCOL": PROTOCOLS[knobs.protocol].value,
            "SENDERS": knobs.senders,
        }  # fmt: skip
        return [Launch(device.all_reduce_norm_kernel, blocks * (knobs.senders + 1), arguments, knobs.options)]

    def run(self, call: NormCall, launches: list[Launch], heap: SymmetricHeap) -> Run:
        if call.knobs.mode != "library_collective":
            return super().run(call, launches, heap)
        (launch,) = launches

        def reduce_then_norm() -> None:
            _all_reduce(call.problem, call.tensors, call.group)
            launch.run()

        return graphed(reduce_then_norm) if call.knobs.launch == "graph" else reduce_then_norm

    def has_collective(self, knobs: NormKnobs) -> bool:
        return knobs.mode == "library_collective" or super().has_collective(knobs)

    def library(self, call: Call[AllReduceNorm, NormKnobs, Tensors, None]) -> Run:
        """The library's all-reduce, then its sum and its norm: four kernels."""
        tensors, problem = call.tensors, call.problem

        def run() -> None:
            library_norm(problem, tensors, _all_reduce(problem, tensors, call.group))

        return graphed(run) if call.knobs.launch == "graph" else run


def _summed(problem: AllReduceNorm, tensors: Tensors) -> torch.Tensor:
    """The tensor in which the library's all-reduce leaves its sum."""
    return tensors.x if problem.in_place else tensors.total


def _all_reduce(problem: AllReduceNorm, tensors: Tensors, group: Any) -> torch.Tensor:
    """The library's, which knows no result apart from its operand: X is copied unless it may be overwritten."""
    summed = _summed(problem, tensors)
    if not problem.in_place:
        summed.copy_(tensors.x)
    torch.distributed.all_reduce(summed, group=group)
    return summed


def norm_launch(problem: AllReduceNorm, knobs: NormKnobs, tensors: Tensors, summed: torch.Tensor) -> Launch:
    """The sum with the residual, and the norm, after an all-reduce of the library's, whose result is ``summed``."""
    arguments = {**_arguments(problem, knobs, tensors), "x": summed}
    return Launch(device.add_norm_kernel, _blocks(problem, knobs), arguments, knobs.options)


def library_norm(problem: AllReduceNorm, tensors: Tensors, summed: torch.Tensor) -> None:
    """The library's sum and norm of what its all-reduce has left in ``summed``."""
    torch.add(summed, tensors.residual, out=tensors.total)
    tensors.normed.copy_(torch.nn.functional.rms_norm(tensors.total, (problem.n,), tensors.weight, problem.eps))


def _blocks(problem: AllReduceNorm, knobs: NormKnobs) -> int:
    return math.ceil(problem.m / knobs.norm_rows)


def _arguments(problem: AllReduceNorm, knobs: NormKnobs, tensors: Tensors) -> dict[str, Any]:
    return {
        **vars(tensors), "M": problem.m, "N": problem.n, "eps": problem.eps, "BLOCK_M": knobs.norm_rows,
        "BLOCK_N": round_up(problem.n), "TYPE": getattr(tl, DTYPES[problem.dtype].triton),
    }  # fmt: skip


KERNELS = AllReduceNormKernels()
