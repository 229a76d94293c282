"""Our combine, alone or behind a GEMM: its scratch and its launch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl

from autotune.dtypes import DTYPES
from autotune.kernels.launching.contract import Call
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.scratch import poison_inboxes
from autotune.kernels.launching.tensors import TORCH_DTYPES, Allocate
from autotune.kernels.launching.way import Way
from autotune.kernels.moe.mode import by_words
from autotune.kernels.moe.problem import SLOTS
from autotune.kernels.moe_combine import device
from autotune.kernels.moe_combine.modes import OneShot, Summed
from autotune.kernels.moe_combine.problem import MOST_INBOX_BYTES, CombinedProblem, MoeCombine
from autotune.kernels.moe_combine.steps import PeerOrder, Sums, columns_of
from autotune.kernels.moe_combine.tensors import Tensors
from autotune.sizes import round_up
from autotune.task import Task

HOW = {"push": device.PUSH, "pull": device.PULL, "one_shot": device.ONE_SHOT}
LONGEST_STEP = 1024
"""Rows that a program places at once."""
MOST_PLACING = 64
MOST_SPLIT = 8
ADDING_PER_UNIT = 4
"""Programs per compute unit that add up: each has few loads under way."""
ROUNDINGS = 2.0
"""Roundings of a result: of what travels, and of the sum."""


@dataclass(frozen=True)
class Scratch:
    """One config's memory between launches, zero at the start; all but ``places`` lies on the heap."""

    epoch_counter: torch.Tensor
    """int64 [1]: see ``primitives/counters.py``."""
    placed: torch.Tensor
    """int32 [2]: programs that have placed their rows, over all launches that used the slot."""
    done: torch.Tensor
    """int32 [world_size]: launches that each rank has finished, of the LL protocol."""
    arrivals: torch.Tensor
    """int32 [groups, 2, parts of blocks], ``one_shot`` [2]: signals, over all launches that used the slot."""
    inbox: torch.Tensor
    """[2, world_size, tokens, hidden], ``one_shot`` [2, tokens * top_k, hidden], in the element type or int64 as LL
    words.
    """
    places: torch.Tensor
    """int64 [world_size * tokens * top_k], this rank's alone: see ``place_rows``."""

    def poison(self) -> None:
        """Fill with NaN what a right launch writes before it reads it."""
        poison_inboxes(self.inbox)


class OwnWay(Way[MoeCombine, Summed | OneShot, Tensors, Scratch]):
    def scratch(self, task: Task[MoeCombine], mode: Summed | OneShot, shared: Allocate, own: Allocate) -> Scratch:
        return scratch_of(task.problem, mode, shared, own)

    def launches(self, call: Call[MoeCombine, Summed | OneShot, Tensors, Scratch]) -> list[Launch]:
        return [combine_launch(call, {**vars(call.tensors), **vars(call.scratch)}, call.knobs.num_warps)]

    def roundings(self, problem: MoeCombine) -> float:
        return ROUNDINGS


def how_of(mode: Sums) -> str:
    """The word of ``HOW``: the mode, or how a combine behind a GEMM goes."""
    return str(getattr(mode, "combine", mode.mode))


def scratch_of(problem: CombinedProblem, mode: Sums, shared: Allocate, own: Allocate, *, groups: int = 1) -> Scratch:
    """The scratch of a combine, of each of ``groups`` of columns."""
    ll = by_words(mode)
    ints, one_shot, per_word = torch.int32, how_of(mode) == "one_shot", 4 // problem.result_size if ll else 1
    of_tokens = (problem.top_k, problem.tokens) if one_shot else (problem.world_size, problem.tokens)
    wire = torch.int64 if ll else TORCH_DTYPES[problem.result_dtype]
    return Scratch(
        epoch_counter=shared((1,), torch.int64),
        placed=shared((SLOTS,), ints),
        done=shared((problem.world_size,), ints),
        arrivals=shared((groups, SLOTS, 1 if one_shot else mode.units(problem)), ints),
        inbox=shared((SLOTS, *of_tokens, problem.hidden // per_word), wire),
        places=own((0 if one_shot else problem.all_pairs,), torch.int64),
    )


def scratch_bytes(problem: CombinedProblem, groups: int = 1) -> int:
    """The largest inbox that the space allows, the counters of single tokens for each of ``groups`` of columns."""
    inboxes = (problem.inbox_bytes(mode, ll=ll) for mode, ll in (("push", False), ("one_shot", True)))
    counters = 2 * groups * problem.tokens * MOST_SPLIT * torch.int32.itemsize
    return min(max(inboxes), MOST_INBOX_BYTES) + counters + (64 << 10)


def summing(call: Call[Any, Any, Any, Any], sending: int) -> tuple[int, dict[str, Any]]:
    """The number of programs that place rows, send, so many, and add up; and the arguments of every such kernel."""
    problem: CombinedProblem = call.problem
    mode: Sums = call.knobs
    how = how_of(mode)
    placing = 0 if how == "one_shot" else min(MOST_PLACING, math.ceil(problem.capacity / LONGEST_STEP))
    adding = min(ADDING_PER_UNIT * call.machine.compute_units, mode.units(problem))
    arguments = {
        **call.common(), "T": problem.tokens, "H": problem.hidden, "K": problem.top_k, "local": problem.local_experts,
        "MODE": HOW[how].value, "LL": by_words(mode), "placing": placing, "sending": sending,
        "ROTATE": not isinstance(mode, PeerOrder) or mode.peer_order == "rotate",
        "STEP": min(LONGEST_STEP, round_up(problem.capacity)), "TOKENS": mode.transfer_tokens, "SPLIT": mode.split,
        "COLUMNS": columns_of(problem, mode.copy_kib, mode.transfer_tokens), "CHOICES": round_up(problem.top_k),
        "TYPE": getattr(tl, DTYPES[problem.result_dtype].triton),
    }  # fmt: skip
    return placing + sending + adding, arguments


def combine_launch(call: Call[Any, Any, Any, Any], tensors: Mapping[str, Any], num_warps: int) -> Launch:
    """A combine, alone or behind a GEMM: ``tensors`` are those of ``Tensors`` and of ``Scratch``."""
    programs, arguments = summing(call, call.knobs.comm_programs)
    return Launch(device.combine_kernel, programs, {**tensors, **arguments}, {"num_warps": num_warps})
