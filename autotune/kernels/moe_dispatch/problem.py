"""The problem: every token to the ranks of its experts, and laid out there by expert."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.dtypes import COMBINATIONS, FP8, SCALE_BLOCK
from autotune.errors import InvalidProblem
from autotune.kernels.gemm.problem import LIBRARY_MULTIPLE, blocks
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
class MoeDispatch(DispatchedProblem):
    """rows [capacity, hidden]: the tokens of all ranks' x [tokens, hidden] by this rank's experts, and the plan that
    says which row is whose (docs/kernels/moe.md). Tokens of fp8 have fp32 scales, and rows have those of their tokens.
    """

    workload = "moe_dispatch"

    dtype: str = choice("element type of tokens", tuple(COMBINATIONS), "bf16")
    scales: str = choice(
        "scales of fp8 tokens: one for each (row), or for each 128 of its elements (block)",
        ("none", "row", "block"), "none", late=True,
    )  # fmt: skip

    def check(self) -> None:
        """Raise InvalidProblem also if element type, scales and hidden size do not go together."""
        super().check()
        if (self.dtype in FP8) != self.scaled:
            allowed = "row, block" if self.dtype in FP8 else "none"
            raise InvalidProblem(f"scales={self.scales}: with dtype={self.dtype} allowed: {allowed}")
        unit = SCALE_BLOCK if self.scales == "block" else LIBRARY_MULTIPLE
        if self.scaled and self.hidden % unit:
            raise InvalidProblem(
                f"hidden={self.hidden}: with dtype={self.dtype} scales={self.scales} it must be a multiple of {unit}"
            )

    @property
    def scaled(self) -> bool:
        return self.scales != "none"

    @property
    def row_scales(self) -> int:
        return {"none": 0, "row": 1}.get(self.scales, blocks(self.hidden))

    @property
    def bytes_read(self) -> int:
        """Lower bound on the bytes that one rank reads and writes: its tokens, and a row per pair, on average."""
        return (self.tokens + self.tokens * self.top_k) * self.token_bytes
