"""The host's side of a dispatch's exchange, for all kernels that begin with it (``moe/arrivals.py``)."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch

from autotune.kernels.launching.contract import Call, MaybeS, T
from autotune.kernels.launching.scratch import poison_inboxes
from autotune.kernels.launching.tensors import OPERAND_DTYPES, Allocate
from autotune.kernels.launching.way import M, Way
from autotune.kernels.moe.mode import by_words
from autotune.kernels.moe.problem import SLOTS
from autotune.kernels.moe_dispatch.problem import DispatchedProblem
from autotune.kernels.moe_dispatch.steps import Moves, columns_of
from autotune.sizes import round_up

LONGEST_STEP = 2048
"""Pairs of the routing that a program sends, or plans, at once; of 16 warps twice as many. A plan goes twice over all
ranks' pairs, and nobody begins before it is there; but more to a thread take registers from who lays rows out.
"""
MOST_ROUTING_PARTS = 8
"""Programs that send the routing."""


D = TypeVar("D", bound=DispatchedProblem)


class ExchangeWay(Way[D, M, T, MaybeS]):
    """A way whose tokens, and their scales, peers load in ``pull``."""

    def read_by_peers(self, problem: D, mode: M) -> tuple[int, ...] | None:
        return (problem.tokens, problem.hidden) if mode.mode == "pull" else None

    def also_read_by_peers(self, problem: D, mode: M) -> tuple[str, ...]:
        return ("scale_x",) if mode.mode == "pull" and problem.row_scales else ()


@dataclass(frozen=True)
class Scratch:
    """One config's memory between launches, zero at the start, on the heap."""

    epoch_counter: torch.Tensor
    """int64 [1]: see ``primitives/counters.py``."""
    own_rows: torch.Tensor
    """int32 [local experts, 2]: of each expert's rows those of this rank's own tokens, from and to."""
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
    scale_inbox: torch.Tensor | None
    """fp32 [2, world_size, tokens, scales of a token], where tokens have any."""

    def poison(self) -> None:
        """Fill with what a right launch writes before it reads it."""
        self.routed.fill_(-1 if self.routed.dtype is torch.int32 else 0)
        poison_inboxes(self.inbox, self.scale_inbox)


def exchange_scratch(
    problem: DispatchedProblem, mode: Moves, shared: Allocate, *, only_routing_by_words: bool = False
) -> Scratch:  # fmt: skip
    """See ``exchange_arguments``."""
    ints, world, pairs = torch.int32, problem.world_size, problem.tokens * problem.top_k
    words = by_words(mode)
    token_words = words and not only_routing_by_words
    per_word = 4 // problem.element_size if token_words else 1
    return Scratch(
        epoch_counter=shared((1,), torch.int64),
        own_rows=shared((problem.local_experts, 2), ints),
        planned=shared((SLOTS,), ints),
        done=shared((world,), ints),
        routings=shared((SLOTS, world), ints),
        arrivals=shared((SLOTS, world, math.ceil(problem.tokens / mode.transfer_tokens)), ints),
        routed=shared((SLOTS, world, 2, pairs), torch.int64 if words else ints),
        inbox=shared(
            (SLOTS, world, problem.tokens, problem.hidden // per_word),
            torch.int64 if token_words else OPERAND_DTYPES[problem.dtype],
        ),
        scale_inbox=(
            shared((SLOTS, world, problem.tokens, problem.row_scales), torch.float32) if problem.row_scales else None
        ),
    )


def exchange_arguments(
    call: Call[Any, Any, Any, Any], num_warps: int, *, only_routing_by_words: bool = False
) -> tuple[int, dict[str, Any]]:  # fmt: skip
    """The number of programs, of so many warps, that exchange and plan, and their arguments but for the operands and
    the plan. ``only_routing_by_words``: tokens themselves never travel by the LL protocol.
    """
    problem: DispatchedProblem = call.problem
    mode: Moves = call.knobs
    words = by_words(mode)
    pairs = problem.tokens * problem.top_k
    step = min(LONGEST_STEP * max(1, num_warps // 8), round_up(problem.all_pairs))
    parts = min(MOST_ROUTING_PARTS, math.ceil(pairs / step))
    arguments = {
        **{each.name: getattr(call.scratch, each.name) for each in fields(Scratch)}, **call.common(),
        "T": problem.tokens, "H": problem.hidden, "K": problem.top_k, "local": problem.local_experts,
        "capacity": problem.capacity, "routing_parts": parts, "comm_programs": mode.comm_programs,
        "PULL": mode.mode == "pull", "LL": words and not only_routing_by_words, "ROUTING_LL": words, "STEP": step,
        "TOKENS": mode.transfer_tokens, "SPLIT": mode.split, "CHOICES": round_up(problem.top_k),
        "COLUMNS": columns_of(problem, mode.copy_kib, mode.transfer_tokens),
    }  # fmt: skip
    return parts + mode.comm_programs + problem.local_experts, arguments
