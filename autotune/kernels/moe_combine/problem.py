"""The problem: every row of an expert back to its token's rank, where a token's rows are summed by their gates."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.kernels.moe.problem import SLOTS, ExpertsProblem
from autotune.problem import flag, invariant

MOST_INBOX_BYTES = 4 << 30
"""Limit on a mode's inbox."""


@dataclass(frozen=True, kw_only=True)
class CombinedProblem(ExpertsProblem):
    """Base of the problems whose rows, one for each pair of a token and an expert, are summed by token."""

    deterministic: bool = flag("demand the same bits in every call")
    invariant: bool = invariant()

    def inbox_bytes(self, mode: str, *, ll: bool = False) -> int:
        """Bytes of the inboxes of a mode on each rank: a slot for each row of our tokens, or for each rank's sums."""
        rows = self.tokens * (self.top_k if mode == "one_shot" else self.world_size)
        return SLOTS * rows * self.hidden * self.result_size * (2 if ll else 1)


@dataclass(frozen=True, kw_only=True)
class MoeCombine(CombinedProblem):
    """out [tokens, hidden] = for each token of this rank the sum over its experts of gate * row; zero without experts.

    The rows lie on the experts' ranks, by expert, as the plan of a dispatch says (docs/kernels/moe.md).
    ``deterministic``: the same inputs give the same bits in every call.
    """

    workload = "moe_combine"
    computes = "experts' rows, summed at their tokens' ranks"

    @property
    def bytes_read(self) -> int:
        """Lower bound on the bytes that one rank reads and writes: a row per pair, on average, and its tokens."""
        return (self.tokens + self.tokens * self.top_k) * self.hidden * self.element_size
