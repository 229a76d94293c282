"""The modes of grouped GEMM + combine as they are declared, and the config used untuned.

A mode's dimensions are those of its bases from right to left, then its own.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from autotune.kernels.moe.mode import ExpertsMode, Protocol, few_rows
from autotune.kernels.moe_combine.modes import (
    LL_WORDS,
    STEP_FITS,
    SUMS,
    many_ranks,
    rows_fit,
    senders_have_work,
)
from autotune.kernels.moe_combine.modes import Library as CombineLibrary
from autotune.kernels.moe_combine.steps import PeerOrder, Sums
from autotune.kernels.moe_gemm_combine.problem import MoeGemmCombine
from autotune.search_spaces import Constraint
from autotune.search_spaces.joint import number, word
from autotune.task import Task

GemmCombineTask = Task[MoeGemmCombine]


def _counts_stay_on_the_device(s: GemmCombineTask, launch: str) -> bool:
    return launch == "eager" or (s.machine.kind == "cuda" and counts_stay(s))


class Library(CombineLibrary[MoeGemmCombine]):
    constraints: ClassVar = (
        *CombineLibrary.constraints,
        Constraint("graph of the library's GEMM", ("launch",), _counts_stay_on_the_device,
                   "the library's grouped GEMM needs counts on the host, except in bf16 and fp8 on NVIDIA GPUs"),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Combine(Knobs):
    combine: str = word("push", "pull", help="push sums to the token's rank, or let that rank pull them",
                        say={"push": "sums are pushed", "pull": "sums are pulled"})  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Senders(Knobs):
    comm_programs: int = number(
        1, 2, 4, 8, 16, 32, 64, 128, 256, 512, help="programs that send sums",
        say={1: "{comm_programs:program} sends", ...: "{comm_programs:program} send"},
    )  # fmt: skip


SUMS_TO_SEND = Constraint("sums to send", ("comm_programs", "transfer_tokens", "split"), senders_have_work,
                          "there are fewer parts of blocks than programs to send them")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Apart(Sums, PeerOrder, Senders, Combine, ExpertsMode[MoeGemmCombine]):
    """A GEMM, then our combine alone."""

    sum_warps: int = number(4, 8, 16, help="warps of a program of the combine", say="{sum_warps:warp}")

    constraints: ClassVar[tuple[Constraint, ...]] = (SUMS_TO_SEND, *SUMS, rows_fit("sum_warps"))

    @classmethod
    def untuned(cls, task: GemmCombineTask) -> Self | None:
        tiles = tiles_apart(cls, task)
        words: dict[str, Any] = {"combine": "push", "peer_order": "rotate", "split": 1, "sum_warps": 8}
        shapes = (
            cls(**words, comm_programs=programs, transfer_tokens=transfer, copy_kib=kib, **tile)
            for transfer, kib in ((2, 8), (1, 4), (1, 2), (1, 1))  # a thread has all of a column's rows
            for programs in (512, 256, 128, 64, 32, 16, 8, 4, 2, 1)
            for tile in tiles
        )
        return MODES.first_valid(shapes, task)

    def changes(self) -> list[dict[str, Any]]:
        fewer = {"transfer_tokens": 1, "copy_kib": 2, "sum_warps": 4}
        words = [{"combine": "pull"}, {"peer_order": "interleaved"}]
        return [fewer, {"comm_programs": 128}, *other_tiles(self), *words]


@dataclass(frozen=True, kw_only=True)
class CustomCollective(Apart):
    mode: str = "custom_collective"

    title: ClassVar[str] = "our collective and the library's GEMM"
    varies: ClassVar[str] = GEMM_VARIES
    constraints: ClassVar = (*Apart.constraints, LIBRARY_GROUPS)


@dataclass(frozen=True, kw_only=True)
class Unfused(GroupedTile, Apart):
    mode: str = "unfused"

    title: ClassVar[str] = "our collective and our GEMM, one after the other"
    constraints: ClassVar = (*Apart.constraints, *GROUPED)


@dataclass(frozen=True, kw_only=True)
class WarpSpecialized(SpecializedTile, Apart):
    mode: str = "warp_specialized"

    title: ClassVar[str] = "our GEMM by warp specialization, then our collective"
    constraints: ClassVar = (*Apart.constraints, *SPECIALIZED)


@dataclass(frozen=True, kw_only=True)
class Fused(GroupedTile, Sums, ExpertsMode[MoeGemmCombine]):
    """One kernel of ours."""

    constraints: ClassVar[tuple[Constraint, ...]] = (*SUMS, STEP_FITS, *GROUPED)

    @classmethod
    def words(cls, task: GemmCombineTask) -> Iterator[dict[str, Any]]:
        """How rows travel, as one would write it down without measuring, the best first."""
        raise NotImplementedError

    @classmethod
    def untuned(cls, task: GemmCombineTask) -> Self | None:
        few, tiles = few_rows(task), narrower(grouped_tile(task, gathered=False))
        shapes = (
            cls(**words, transfer_tokens=transfer, split=1, copy_kib=kib, **tile)
            for words in cls.words(task)
            for tile in tiles
            for transfer, kib in (((1, 2), (1, 1)) if few else ((2, 8), (2, 4), (1, 4), (1, 1))[many_ranks(task) :])
        )
        return MODES.first_valid(shapes, task)

    def other_words(self) -> list[dict[str, Any]]:
        raise NotImplementedError

    def changes(self) -> list[dict[str, Any]]:
        return [
            *self.other_words(), {"split": 2}, {"swap_ab": not self.swap_ab}, {"loads": "pointer"}, *other_rows(self),
            {"programs_per_unit": 2},
        ]  # fmt: skip


def _groups_have_tiles(s: GemmCombineTask, column_groups: int, block_n: int) -> bool:
    tiles = -(-s.problem.hidden // block_n)
    return (column_groups - 1) * -(-tiles // column_groups) < tiles


def _leaves_room(s: GemmCombineTask, comm_programs: int, column_groups: int) -> bool:
    return column_groups == 1 or comm_programs <= max(1, s.machine.compute_units // 2)


@dataclass(frozen=True, kw_only=True)
class ColumnGroups(Senders):
    column_groups: int = number(
        1, 2, 4, 8, help="groups of columns: sums of one travel while the next is computed",
        say={1: "", ...: "{column_groups} groups of columns, one after the other"},
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Summed(Fused, PeerOrder, ColumnGroups):
    """A token's rows are summed where they are before they travel."""

    constraints: ClassVar = (
        SUMS_TO_SEND,
        *Fused.constraints,
        rows_fit("num_warps"),
        Constraint("tiles of a group", ("column_groups", "block_n"), _groups_have_tiles,
                   "every group of columns needs a column of tiles"),
        Constraint("room for the GEMM", ("comm_programs", "column_groups"), _leaves_room,
                   "programs that send would leave less than half of the device to the GEMM"),
    )  # fmt: skip

    @classmethod
    def words(cls, task: GemmCombineTask) -> Iterator[dict[str, Any]]:
        # 16 programs and 4 groups took 1.9 times as long with 1024 tokens, 2.2 times with 4096 (2 H100, 2026-11-24).
        for programs in (16, 8, 4, 2, 1) if few_rows(task) else (64, 32, 16, 8, 4, 2, 1):
            yield {"peer_order": "rotate", "comm_programs": programs, "column_groups": 1}

    def other_words(self) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = [{"column_groups": each, "comm_programs": 16} for each in (4, 8)]
        return [{"comm_programs": 128}, *groups, {"peer_order": "interleaved"}]


@dataclass(frozen=True, kw_only=True)
class Push(Summed):
    mode: str = "push"

    title: ClassVar[str] = "push: each rank sums its rows of a token beside the GEMM, and sends the sums"


@dataclass(frozen=True, kw_only=True)
class Pull(Summed):
    mode: str = "pull"

    title: ClassVar[str] = (
        "pull: each rank sums its rows of a token beside the GEMM, and the token's rank loads the sums"
    )


def _ll_words_are_whole(s: GemmCombineTask, protocol: str, block_m: int, block_n: int, num_warps: int) -> bool:
    return protocol == "signal" or block_m * block_n <= 64 * 32 * num_warps


@dataclass(frozen=True, kw_only=True)
class OneShot(Fused, Protocol):
    mode: str = "one_shot"

    title: ClassVar[str] = "one shot: each rank gets all rows of its tokens and sums them"
    constraints: ClassVar = (
        *Fused.constraints,
        *LL_WORDS,
        Constraint("LL words of a tile", ("protocol", "block_m", "block_n", "num_warps"), _ll_words_are_whole,
                   "a tile's LL words need more than 64 registers per thread"),
    )  # fmt: skip

    @classmethod
    def words(cls, task: GemmCombineTask) -> Iterator[dict[str, Any]]:
        yield {"protocol": "ll" if task.machine.kind == "cuda" else "signal"}

    def other_words(self) -> list[dict[str, Any]]:
        return [{"protocol": "ll"}, {"protocol": "signal"}]


def default(task: GemmCombineTask) -> Mode[MoeGemmCombine]:
    """Few rows as they are; for many GEMM and sums apart, which was the fastest from 16 tokens on (2 H100, 2026-11-24),
    by warp specialization where it may be; the library's way where no tile or no inbox fits.
    """
    apart = (WarpSpecialized, Unfused) if many_rows(task) else (Unfused, WarpSpecialized)
    order: tuple[type[OneShot | Apart], ...] = (OneShot, *apart) if few_rows(task) else (*apart, OneShot)
    found = (mode.untuned(task) for mode in order)
    return next(filter(None, found), Library(launch="eager", exchange="reduce_scatter"))


MODES = Modes(
    Library,
    CustomCollective,
    Unfused,
    WarpSpecialized,
    Push,
    Pull,
    OneShot,
    default=default,
    shared=(operands_constraint(),),
)
SPACE = MODES.space
