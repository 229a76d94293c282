"""The steps in which rows are summed and sent: dimensions of every combine. Read without torch and Triton, too."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.kernels.launching.knobs import Knobs
from autotune.kernels.moe_combine.problem import CombinedProblem
from autotune.search_spaces.joint import number, word
from autotune.sizes import round_up


@dataclass(frozen=True, kw_only=True)
class PeerOrder(Knobs):
    peer_order: str = word(
        "rotate", "interleaved",
        help="send to one peer after the other, or each block of tokens to peers in turn",
        say={"rotate": "one peer after the other", "interleaved": "peers in turn"},
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Sums(Knobs):
    transfer_tokens: int = number(1, 2, 4, 8, 16, help="transfer granularity: tokens per signal",
                                  say="{transfer_tokens:token} per signal")  # fmt: skip
    split: int = number(1, 2, 4, 8, help="programs that share a block of tokens, a part of the columns each",
                        say={1: "", ...: "each block shared by {split} programs"})  # fmt: skip
    copy_kib: int = number(1, 2, 4, 8, 16, 32, help="KiB that a program sums and moves at once",
                           say="{copy_kib} KiB per step")  # fmt: skip

    def units(self, problem: CombinedProblem) -> int:
        """Parts of blocks of a rank's tokens."""
        return math.ceil(problem.tokens / self.transfer_tokens) * self.split


def columns_of(problem: CombinedProblem, copy_kib: int, rows: int) -> int:
    """Columns of a step of that many KiB over that many rows."""
    return min(copy_kib * 1024 // problem.result_size // rows, round_up(problem.hidden))
