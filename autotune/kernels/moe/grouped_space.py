"""A grouped GEMM's part of a joint space.

A problem's ``gemm`` has the rows of one expert at most, columns and depth; ``rows_per_expert`` is how many an expert
has on average.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from autotune.dtypes import WGMMA_ROWS
from autotune.kernels.gemm.space import fits_shared_memory, tile_constraints, tma_aligned
from autotune.kernels.gemm.specialized import SWIZZLED, SpecializedTile, promotes, specialized_constraints
from autotune.kernels.gemm.tile import Tile
from autotune.kernels.launching.knobs import Knobs
from autotune.search_spaces.joint import flag, number, word
from autotune.search_spaces.space import Constraint
from autotune.sizes import round_up
from autotune.task import Task


def halves_by_tma(s: Task[Any], loads: str) -> bool:
    """True unless a tile's halves of B would be two tiles of TMA."""
    return loads != "tma" or not s.problem.halves or s.problem.b_order == "nk"


def _transposed_fits(
    s: Task[Any], swap_ab: bool, block_m: int, block_n: int, block_k: int, num_stages: int, loads: str
) -> bool:
    from_memory = s.machine.arch in ("sm_90", "sm_100", "sm_103")  # their matrix units take both operands from there
    return not (swap_ab and from_memory) or fits_shared_memory(s, block_n, block_m, block_k, num_stages, loads)


GROUPED = (
    *tile_constraints(),
    Constraint("shared memory", ("swap_ab", "block_m", "block_n", "block_k", "num_stages", "loads"), _transposed_fits,
               "the pipeline's stages of a transposed tile do not fit into a program's shared memory"),
    Constraint("TMA of both halves", ("loads",), halves_by_tma,
               "gate and up in halves arrive as one tile only if B is stored transposed, b_order=nk"),
)  # fmt: skip
"""Constraints of every mode whose grouped GEMM is ours."""


def _steps_stay_within_an_expert(s: Task[Any], block_k: int) -> bool:
    return bool(s.problem.b_order == "nk" or s.problem.k % block_k == 0)


SPECIALIZED = (
    *specialized_constraints(),
    Constraint("steps of one expert", ("block_k",), _steps_stay_within_an_expert,
               "with b_order=kn the depth is a multiple of block_k: else the last step had rows of another B"),
)  # fmt: skip
"""Likewise by warp specialization."""


def counts_stay(s: Task[Any]) -> bool:
    """True if the library multiplies groups of these operands without a word to the host."""
    return bool(s.problem.dtype == "bf16" or (s.problem.scaled and s.machine.kind == "cuda"))


def _groups_on_the_device(s: Task[Any], mode: str) -> bool:
    return s.machine.is_interpreter or counts_stay(s)


LIBRARY_GROUPS = Constraint(
    "groups of the library", ("mode",), _groups_on_the_device,
    "the library's grouped GEMM needs counts on the host, except in bf16, and in fp8 on NVIDIA GPUs",
)  # fmt: skip


def grouped_tile(task: Task[Any], *, gathered: bool) -> dict[str, Any]:
    """Tile, pipeline and loads that one would write down without measuring: few rows read B as fast as they can, many
    compute. ``gathered``: rows of A are.

    The caller makes it smaller where it does not fit (fp32).
    """
    problem, machine = task.problem, task.machine
    tma = tma_aligned(task, "tma") and halves_by_tma(task, "tma") and machine.has_tma and not machine.is_interpreter
    rows, (_, columns, depth) = problem.rows_per_expert, problem.gemm
    few, cuda = rows <= 32, machine.kind == "cuda"
    tile: dict[str, Any]
    most = rows + 2 * math.isqrt(rows)  # of most experts: one with more reads its B twice
    if machine.is_interpreter:
        tile = {"block_m": 16, "block_n": 32, "block_k": 32, "group_m": 1, "num_warps": 4, "num_stages": 2}
        tile["programs_per_unit"] = 1
    elif few:
        tile = {"block_m": max(16, round_up(most)), "block_n": 128, "block_k": 128, "group_m": 1, "num_warps": 4}
        tile |= {"num_stages": 4 if cuda else 2, "programs_per_unit": 2}
    else:
        # Rows of A are gathered by pointers, each as often as there are columns of tiles: 128 columns took a quarter
        # longer than 256 with 256 and with 1024 rows an expert; with 64 rows 64x128 took 22 % longer than 128x256 in a
        # dispatch, 47 % in a combine (H200, 2026-11-23 and 24).
        tile = {"block_m": 64 if most <= 64 else 128, "block_n": 256 if cuda else 128, "block_k": 64, "group_m": 8}
        tile |= {"num_warps": 8, "num_stages": 4 if cuda else 2, "programs_per_unit": 1}
    if problem.scaled and not machine.is_interpreter:
        tile |= {"block_k": 128, "block_n": 128, "num_stages": min(tile["num_stages"], 3)}  # as many bytes as of bf16
        if not few and cuda:
            tile |= _adding_tile(problem, gathered=gathered, in_two_parts=tma and rows > 96)
            # With 64 rows an expert this took 3 to 13 % less time than tiles in two parts (H200, 2026-11-24).
            tile |= {"num_stages": 4} if rows <= 96 else {}
    tile["block_m"] = min(tile["block_m"], max(16, round_up(problem.gemm[0])))
    tile["block_n"] = min(tile["block_n"], max(32, round_up(columns)))
    tile["block_k"] = min(tile["block_k"], max(32, round_up(depth)))
    if few and cuda and tile["block_m"] == 64 and machine.arch != "sm_90" and (gathered or not machine.has_tma):
        tile["num_warps"] = 8  # of four, which hold 64 rows' addresses, 2 to 8 words spill
    return {**tile, "swap_ab": few and cuda, "loads": "tma" if tma else "pointer"}


def _adding_tile(problem: Any, *, gathered: bool, in_two_parts: bool) -> dict[str, Any]:
    """A tile whose sums are promoted, or scaled by blocks: one part of the work adds up while another multiplies.

    The parts are two programs with tiles of 64 rows, or the two halves of a tile where ``Tile.rows_in_turn``
    says so: the former took 10 to 25 % longer with scales by rows and 256 or 1024 rows an expert, up to 12 % by blocks
    (H200, 2026-11-23).
    """
    by_rows = problem.scales == "row"
    if not in_two_parts or (problem.fast_accum if by_rows else problem.halves):
        return {"block_m": 64, "num_warps": 4, "programs_per_unit": 2}
    if gathered and by_rows:
        return {"block_n": 256, "num_warps": 8, "programs_per_unit": 1}
    return {"num_warps": 4, "programs_per_unit": 2}


def narrower(tile: dict[str, Any]) -> list[dict[str, Any]]:
    """The tile, and others of fewer columns that may fit where it does not."""
    return [{**tile, "block_n": max(32, tile["block_n"] // parts)} for parts in (1, 2, 4)]


def many_rows(task: Task[Any]) -> bool:
    """True if experts have more rows than a group of warps multiplies at least: then warp specialization comes first
    untuned; with 64 it took 1.04 times as long (one H200, 2026-11-29).
    """
    return bool(task.problem.rows_per_expert > WGMMA_ROWS)


def specialized_tile(task: Task[Any]) -> dict[str, Any]:
    """The largest that both groups of warps share; for few rows one of each group's own."""
    problem = task.problem
    tile = {"block_m": 128, "block_n": 256, "num_stages": 4, "consumers": "cooperative", "group_m": 8}
    if not many_rows(task):
        tile |= {"block_m": 64, "block_n": 128, "num_stages": 8, "consumers": "pingpong"}
    elif promotes(problem):
        tile |= {"block_n": 128, "num_stages": 6}
    return {**tile, "block_k": SWIZZLED // problem.element_size}


def tiles_apart(mode: type[Knobs], task: Task[Any]) -> list[dict[str, Any]]:
    """Those of a GEMM in a launch of its own; a single, empty choice if it is the library's."""
    if issubclass(mode, SpecializedTile):
        return [specialized_tile(task)]
    return narrower(grouped_tile(task, gathered=False)) if issubclass(mode, GroupedTile) else [{}]


def other_rows(tile: GroupedTile) -> list[dict[str, Any]]:
    """Half and twice as many rows in a tile; no fewer, for a tile of 16 where experts have hundreds takes eight times
    as long (2 H100, 2026-11-24).
    """
    return [{"block_m": tile.block_m // 2}, {"block_m": tile.block_m * 2}]


def other_tiles(mode: Knobs) -> list[dict[str, Any]]:
    if isinstance(mode, SpecializedTile):
        pingpong = {"consumers": "pingpong", "block_n": 128}
        return [{**pingpong, "num_stages": 5}, {**pingpong, "block_m": 64, "num_stages": 8}]
    return [{"swap_ab": not mode.swap_ab}, *other_rows(mode)] if isinstance(mode, GroupedTile) else []


@dataclass(frozen=True, kw_only=True)
class GroupedTile(Tile):
    loads: str = word("pointer", "tma", help="loads and stores by pointers, or by TMA",
                      say={"pointer": "pointer loads", "tma": "TMA loads"})  # fmt: skip
    swap_ab: bool = flag(help="compute each tile's transpose: for experts with few rows",
                         say="tiles are computed transposed")  # fmt: skip
    programs_per_unit: int = number(1, 2, 4, help="GEMM programs per compute unit, which walk the tiles",
                                    say="{programs_per_unit:program} per compute unit")  # fmt: skip

    def most_tiles(self, rows: int, experts: int, columns: int) -> int:
        """Tiles of ``rows`` rows, however they fall to the experts."""
        blocks = min(rows, (rows + experts * (self.block_m - 1)) // self.block_m)
        return blocks * -(-columns // self.block_n)

    def grouped_programs(self, rows: int, experts: int, columns: int, units: int) -> int:
        """Programs that walk the tiles, on so many compute units."""
        return max(1, min(self.most_tiles(rows, experts, columns), units * self.programs_per_unit))
