"""Warp specialization of a GEMM as modes declare it: its tile, and what a tile has to fit. Read without torch, too.

In each program one warp loads tiles by TMA into a ring of stages, and two groups of four warps multiply them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autotune.dtypes import WGMMA_ROWS
from autotune.kernels.gemm.problem import GemmProblem, MatrixOperands
from autotune.kernels.gemm.space import tma_aligned
from autotune.kernels.gemm.tile import NUM_STAGES, Blocks
from autotune.kernels.launching.knobs import LadderKnobs
from autotune.search_spaces import Constraint
from autotune.search_spaces.joint import word
from autotune.task import Task

SWIZZLED = 128
"""Bytes of a row of a step: the widest swizzle of shared memory."""

BARRIERS = 1024
"""Bytes enough for the ring's barriers."""


@dataclass(frozen=True, kw_only=True)
class SpecializedTile(Blocks, LadderKnobs):
    """A tile that some warps load and others multiply."""

    num_stages: int = NUM_STAGES
    consumers: str = word(
        "cooperative", "pingpong", help="both groups of warps multiply each tile, or each has every other tile",
        say={"cooperative": "both groups of warps share a tile", "pingpong": "two groups of warps in turns"},
    )  # fmt: skip
    split_k: int = 1  # no dimension

    @property
    def tma(self) -> bool:
        return True

    @property
    def rows(self) -> int:
        """Rows of a tile that a group of warps multiplies."""
        return rows_of(self.block_m, self.consumers)

    def stored(self, task: Task[Any]) -> int:
        """Columns of a tile that go out at once, see ``stored_columns``."""
        return stored_columns(task, self.block_m, self.block_n, self.num_stages, self.consumers)


def rows_of(block_m: int, consumers: str) -> int:
    return block_m // 2 if consumers == "cooperative" else block_m


def promotes(problem: MatrixOperands) -> bool:
    """True if each step's products are added up in fp32 registers."""
    return problem.element_size == 1 and not problem.fast_accum


def stored_columns(task: Task[Any], block_m: int, block_n: int, num_stages: int, consumers: str) -> int:
    """Columns of a tile that go out at once through shared memory: all, half of them where no more fit beside the
    stages, or 0 where these do not either.
    """
    held = num_stages * (block_m + block_n) * SWIZZLED + BARRIERS
    row = 2 * rows_of(block_m, consumers) * task.problem.result_size
    columns = block_n // 2 if task.problem.gated else block_n
    return next((each for each in (columns, columns // 2) if held + row * each <= task.machine.shared_memory), 0)


def _multiplies_by_groups(s: Task[GemmProblem], mode: str) -> bool:
    return s.machine.kind == "cuda" and s.machine.arch == "sm_90"


def _takes_operands(s: Task[GemmProblem], mode: str) -> bool:
    p = s.problem
    fp8 = p.element_size == 1 and p.b_order == "nk"
    plain = not p.gated or p.halves
    return (p.element_size == 2 or fp8) and p.result_size == 2 and plain and tma_aligned(s, "tma")


def _up_has_one_scale(s: Task[GemmProblem], mode: str, block_n: int) -> bool:
    p = s.problem
    return not (p.gated and p.scales == "block") or p.gemm[1] // 2 % (block_n // 2) == 0


def _step_is_a_line(s: Task[GemmProblem], block_k: int) -> bool:
    return bool(block_k * s.problem.element_size == SWIZZLED)


def _fits_consumers(s: Task[GemmProblem], block_m: int, block_n: int, consumers: str) -> bool:
    rows, most = rows_of(block_m, consumers), 128 if promotes(s.problem) else 256
    return rows >= WGMMA_ROWS and block_n >= 128 and rows * block_n <= WGMMA_ROWS * most


def _stages_fit(s: Task[GemmProblem], block_m: int, block_n: int, num_stages: int, consumers: str) -> bool:
    # A consumer gives a stage back when it multiplies the next.
    return num_stages >= 3 and bool(stored_columns(s, block_m, block_n, num_stages, consumers))


def specialized_constraints() -> tuple[Constraint, ...]:
    return (
        Constraint("warp specialization", ("mode",), _multiplies_by_groups, "only sm_90 multiplies by groups of warps"),
        Constraint("a specialized product", ("mode",), _takes_operands,
                   "warp specialization takes operands whose rows are multiples of 16 bytes, in bf16 or fp16, or in "
                   "fp8 with b_order=nk, and gives 16 bits; gate and up as halves"),
        Constraint("up's scales", ("mode", "block_n"), _up_has_one_scale,
                   "a step of up has one scale by blocks: the columns of gate must be a multiple of half of block_n"),
        Constraint("a step of 128 bytes", ("block_k",), _step_is_a_line,
                   "128 bytes of a row are loaded at once: block_k=64, of fp8 128"),
        Constraint("consumers", ("block_m", "block_n", "consumers"), _fits_consumers,
                   "each of two groups of warps multiplies 64 rows or more and 128 columns or more, at most 64 by 256 "
                   "of them, of fp8 64 by 128 unless fast_accum"),
        Constraint("shared memory", ("block_m", "block_n", "num_stages", "consumers"), _stages_fit,
                   "a ring of three stages or more, as many as fit into a program's shared memory"),
    )  # fmt: skip
