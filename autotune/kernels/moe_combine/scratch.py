"""Memory of one config's kernels, kept between launches and shared across ranks."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from autotune.kernels.launching.scratch import poison_inbox
from autotune.kernels.launching.tensors import TORCH_DTYPES, Allocate
from autotune.kernels.moe.problem import SLOTS
from autotune.kernels.moe_combine.problem import CombinedProblem


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
        poison_inbox(self.inbox)


def scratch_of(
    problem: CombinedProblem, mode: str, units: int, shared: Allocate, own: Allocate, *, ll: bool, groups: int = 1
) -> Scratch:
    """The scratch of a mode that signals ``units`` parts of blocks, for each of ``groups`` of columns."""
    ints, one_shot, per_word = torch.int32, mode == "one_shot", 4 // problem.result_size if ll else 1
    of_tokens = (problem.top_k, problem.tokens) if one_shot else (problem.world_size, problem.tokens)
    wire = torch.int64 if ll else TORCH_DTYPES[problem.result_dtype]
    return Scratch(
        epoch_counter=shared((1,), torch.int64),
        placed=shared((SLOTS,), ints),
        done=shared((problem.world_size,), ints),
        arrivals=shared((groups, SLOTS, 1 if one_shot else units), ints),
        inbox=shared((SLOTS, *of_tokens, problem.hidden // per_word), wire),
        places=own((0 if one_shot else problem.all_pairs,), torch.int64),
    )
