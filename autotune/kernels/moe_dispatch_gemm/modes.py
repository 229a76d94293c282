"""The modes of dispatch + grouped GEMM as they are declared, and the config used untuned.

A mode's dimensions are those of its bases from right to left, then its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from autotune.kernels.gemm.space import operands_constraint
from autotune.kernels.gemm.specialized import SpecializedTile
from autotune.kernels.launching.knobs import Knobs
from autotune.kernels.launching.mode import GEMM_VARIES, Mode, Modes
from autotune.kernels.moe.grouped_space import (
    GROUPED,
    LIBRARY_GROUPS,
    SPECIALIZED,
    GroupedTile,
    counts_stay,
    grouped_tile,
    many_rows,
    narrower,
    other_rows,
    other_tiles,
    tiles_apart,
)
from autotune.kernels.moe.mode import LL_ARRIVE, ExpertsMode, few_tokens
from autotune.kernels.moe_dispatch.modes import (
    LL_TOKENS,
    MOVES,
    TOKENS_TO_PULL,
    TOKENS_TO_PUSH,
    wide_enough,
)
from autotune.kernels.moe_dispatch.modes import Library as DispatchLibrary
from autotune.kernels.moe_dispatch.steps import Moves
from autotune.kernels.moe_dispatch_gemm.problem import MoeDispatchGemm
from autotune.search_spaces import Constraint
from autotune.search_spaces.joint import number, word
from autotune.sizes import round_up
from autotune.task import Task

DispatchGemmTask = Task[MoeDispatchGemm]


def _groups_without_counts(s: DispatchGemmTask, launch: str) -> bool:
    return launch == "eager" or counts_stay(s)


class Library(DispatchLibrary[MoeDispatchGemm]):
    constraints: ClassVar = (
        *DispatchLibrary.constraints,
        Constraint("graphs of the library's GEMM", ("launch",), _groups_without_counts,
                   "the library's grouped GEMM needs counts on the host, except in bf16, and in fp8 on NVIDIA GPUs"),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Protocol(Knobs):
    protocol: str = word(
        "signal", "ll",
        help="routing, and where rows are laid out tokens: data, then a signal; or LL: words of data and flag",
        say={"signal": "data, then a signal", "ll": "LL words of data and flag"},
    )  # fmt: skip


def _rows_are_wide(s: DispatchGemmTask, copy_kib: int, layout_rows: int) -> bool:
    return wide_enough(s, copy_kib, layout_rows) and layout_rows <= round_up(s.problem.capacity)


@dataclass(frozen=True, kw_only=True)
class LaidOut(Moves, Protocol, ExpertsMode[MoeDispatchGemm]):
    """Our dispatch alone lays rows out by expert before a GEMM multiplies them."""

    layout_rows: int = number(1, 2, 4, 8, help="rows that a program lays out at once",
                              say="{layout_rows:row} laid out at once")  # fmt: skip
    layout_warps: int = number(4, 8, 16, help="warps of a program of the dispatch", say="{layout_warps:warp}")

    by_stores: ClassVar[bool] = True
    constraints: ClassVar[tuple[Constraint, ...]] = (
        TOKENS_TO_PUSH,
        *LL_TOKENS,
        *MOVES,
        Constraint("width of rows", ("copy_kib", "layout_rows"), _rows_are_wide,
                   "a program would lay out fewer than 64 elements of each row at once, or too many rows"),
    )  # fmt: skip

    @classmethod
    def untuned(cls, task: DispatchGemmTask) -> Self | None:
        words = few_tokens(task) and task.machine.kind == "cuda" and not task.problem.scaled
        tiles = tiles_apart(cls, task)
        sizes: dict[str, Any] = {"split": 1, "copy_kib": 8, "layout_rows": 1, "layout_warps": 8}
        shapes = (
            cls(protocol="ll" if words else "signal", **sizes, comm_programs=programs, transfer_tokens=transfer, **tile)
            for programs in (128, 64, 32, 16, 8, 4, 2, 1)
            for transfer in (8, 1)
            for tile in tiles
        )
        return MODES.first_valid(shapes, task)

    def changes(self) -> list[dict[str, Any]]:
        return [
            {"layout_rows": 4}, {"copy_kib": 16}, *other_tiles(self), {"comm_programs": 32}, {"layout_warps": 16},
        ]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CustomCollective(LaidOut):
    mode: str = "custom_collective"

    title: ClassVar[str] = "our collective and the library's GEMM"
    varies: ClassVar[str] = GEMM_VARIES
    constraints: ClassVar = (*LaidOut.constraints, LIBRARY_GROUPS)


@dataclass(frozen=True, kw_only=True)
class Unfused(GroupedTile, LaidOut):
    mode: str = "unfused"

    title: ClassVar[str] = "our collective and our GEMM, one after the other"
    constraints: ClassVar = (*LaidOut.constraints, *GROUPED)


@dataclass(frozen=True, kw_only=True)
class WarpSpecialized(SpecializedTile, LaidOut):
    mode: str = "warp_specialized"

    title: ClassVar[str] = "our collective, then our GEMM by warp specialization"
    constraints: ClassVar = (*LaidOut.constraints, *SPECIALIZED)


def _leaves_room(s: DispatchGemmTask, comm_programs: int) -> bool:
    return comm_programs <= max(1, s.machine.compute_units // 2)


def _others_come(s: DispatchGemmTask, tile_order: str) -> bool:
    return tile_order == "experts" or s.problem.world_size > 1


@dataclass(frozen=True, kw_only=True)
class TileOrder(Moves):
    tile_order: str = word(
        "experts", "own_first",
        help="tiles expert by expert; or first those of this rank's own tokens alone, which wait for no transfer",
        say={"experts": "", "own_first": "tiles of own tokens first"},
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Fused(GroupedTile, TileOrder, ExpertsMode[MoeDispatchGemm]):
    """One kernel of ours, whose GEMM gathers the rows of arrived tokens."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        *MOVES,
        *GROUPED,
        Constraint("room for the GEMM", ("comm_programs",), _leaves_room,
                   "programs that move tokens would leave less than half of the device to the GEMM"),
        Constraint("tokens of others", ("tile_order",), _others_come,
                   "with one rank all tokens are its own, so own_first changes nothing"),
    )  # fmt: skip

    @classmethod
    def words(cls, task: DispatchGemmTask) -> dict[str, Any]:
        """Those of ``untuned``."""
        return {}

    @classmethod
    def untuned(cls, task: DispatchGemmTask) -> Self | None:
        problem, few, words = task.problem, few_tokens(task), cls.words(task)
        whole = grouped_tile(task, gathered=True)
        own_tiles = problem.rows_per_expert // problem.world_size >= whole["block_m"]
        order = "own_first" if own_tiles and problem.world_size > 1 else "experts"
        shapes = (
            cls(**words, split=1, copy_kib=8, tile_order=order, comm_programs=programs,
                transfer_tokens=1 if few else transfer, **tile)
            for transfer, programs in ((8, 16), (4, 8), (1, 32), (1, 8), (1, 4), (1, 2), (1, 1))
            for tile in narrower(whole)
        )  # fmt: skip
        return MODES.first_valid(shapes, task)

    def other_words(self) -> list[dict[str, Any]]:
        return []

    def changes(self) -> list[dict[str, Any]]:
        return [
            {"swap_ab": not self.swap_ab}, *self.other_words(),
            {"tile_order": "own_first" if self.tile_order == "experts" else "experts"}, {"split": 4},
            {"programs_per_unit": 2}, {"loads": "pointer"}, *other_rows(self),
            {"comm_programs": 8, "transfer_tokens": 16},
        ]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Push(Fused, Protocol):
    mode: str = "push"

    title: ClassVar[str] = "push: each rank sends its tokens, the experts' tiles wait for what they need"
    constraints: ClassVar = (TOKENS_TO_PUSH, LL_ARRIVE, *Fused.constraints)

    @classmethod
    def words(cls, task: DispatchGemmTask) -> dict[str, Any]:
        few = few_tokens(task)
        return {"protocol": "ll" if few and task.machine.kind == "cuda" else "signal"}

    def other_words(self) -> list[dict[str, Any]]:
        return [{"protocol": "ll"}]


@dataclass(frozen=True, kw_only=True)
class Pull(Fused):
    mode: str = "pull"

    title: ClassVar[str] = "pull: each rank loads its experts' tokens, the tiles wait for what they need"
    constraints: ClassVar = (TOKENS_TO_PULL, *Fused.constraints)


def default(task: DispatchGemmTask) -> Mode[MoeDispatchGemm]:
    """One launch for few tokens; for many dispatch and GEMM apart, for a GEMM of laid-out rows takes 5 to 10 % less
    time than one that gathers them, by warp specialization where it may be; the library's way where no tile or no inbox
    fits.
    """
    apart = (WarpSpecialized, Unfused) if many_rows(task) else (Unfused, WarpSpecialized)
    order: tuple[type[Push | LaidOut], ...] = (Push, *apart) if few_tokens(task) else (*apart, Push)
    found = (mode.untuned(task) for mode in order)
    return next(filter(None, found), Library(launch="eager", exchange="all_gather"))


MODES = Modes(
    Library, CustomCollective, Unfused, WarpSpecialized, Push, Pull, default=default, shared=(operands_constraint(),)
)  # fmt: skip
SPACE = MODES.space
