"""The steps in which tokens travel: dimensions of every dispatch. Read without torch and Triton, too."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.kernels.launching.knobs import Knobs
from autotune.kernels.moe_dispatch.problem import DispatchedProblem
from autotune.search_spaces.joint import number
from autotune.sizes import round_up


@dataclass(frozen=True, kw_only=True)
class Moves(Knobs):
    comm_programs: int = number(
        1, 2, 4, 8, 16, 32, 64, 128, help="programs that move tokens",
        say={1: "{comm_programs:program} moves tokens", ...: "{comm_programs:program} move tokens"},
    )  # fmt: skip
    transfer_tokens: int = number(1, 2, 4, 8, 16, 32, 64, help="transfer granularity: tokens per signal",
                                  say="{transfer_tokens:token} per signal")  # fmt: skip
    split: int = number(1, 2, 4, 8, help="programs that share a block of tokens, a part of the columns each",
                        say={1: "", ...: "each block shared by {split} programs"})  # fmt: skip
    copy_kib: int = number(1, 2, 4, 8, 16, help="KiB that a program moves at once", say="{copy_kib} KiB per step")


def columns_of(problem: DispatchedProblem, copy_kib: int, rows: int) -> int:
    """Columns of a step of that many KiB over that many rows."""
    return min(copy_kib * 1024 // problem.element_size // rows, round_up(problem.hidden))
