"""The problem: every token to the ranks of its experts, and laid out there by expert."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.dtypes import COMBINATIONS
from autotune.kernels.gemm.problem import ScaledRows
from autotune.kernels.moe.problem import SLOTS, ExpertsProblem
from autotune.problem import choice

MOST_INBOX_BYTES = 4 << 30
"""Limit on a mode's inbox of tokens."""


@dataclass(frozen=True, kw_only=True)
class DispatchedProblem(ExpertsProblem):
    """Base of the problems whose tokens go to the ranks of their experts."""

    @property
    def token_bytes(self) -> int:
        """Bytes of a token on its way, its scales among them."""
        return self.hidden * self.element_size + 4 * self.row_scales

    def inbox_bytes(self, *, ll: bool = False) -> int:
        """Bytes of the inboxes of tokens on each rank."""
        return SLOTS * self.world_size * self.tokens * self.token_bytes * (2 if ll else 1)

    @property
    def exchange_bytes(self) -> int:
        """The most that counters and inboxes take on the heap, those of single tokens and of LL words among them."""
        routed = SLOTS * 2 * self.all_pairs * 8
        counters = SLOTS * self.world_size * self.tokens * 4 + self.local_experts * 8
        return self.inbox_bytes(ll=True) + routed + counters + (64 << 10)


@dataclass(frozen=True, kw_only=True)
class MoeDispatch(ScaledRows, DispatchedProblem):
    """rows [capacity, hidden]: the tokens of all ranks' x [tokens, hidden] by this rank's experts, and the plan that
    says which row is whose (docs/kernels/moe.md). Tokens of fp8 have fp32 scales, and rows have those of their tokens.
    """

    workload = "moe_dispatch"
    sums = False
    computes = "tokens to the ranks of their experts"

    dtype: str = choice("element type of tokens", tuple(COMBINATIONS), "bf16")
    scales: str = choice(
        "scales of fp8 tokens: one for each (row), or for each 128 of its elements (block)",
        ("none", "row", "block"), "none",
    )  # fmt: skip

    def check(self) -> None:
        """Raise InvalidProblem also if element type, scales and hidden size do not go together."""
        super().check()
        self.check_scales("elements of a token", self.hidden)

    @property
    def row_scales(self) -> int:
        return self.scales_of_a_row(self.hidden)

    @property
    def bytes_read(self) -> int:
        """Lower bound on the bytes that one rank reads and writes: its tokens, and a row per pair, on average."""
        return (self.tokens + self.tokens * self.top_k) * self.token_bytes
