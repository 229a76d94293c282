"""The modes of the dispatch of tokens to experts as they are declared, and the config used untuned.

A mode's dimensions are those of its bases from right to left, then its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

from autotune.dtypes import multiplies
from autotune.kernels.launching.mode import Mode, Modes
from autotune.kernels.moe.mode import LL_ARRIVE, ExpertsLibrary, ExpertsMode, Protocol, few_tokens
from autotune.kernels.moe_dispatch.problem import MOST_INBOX_BYTES, DispatchedProblem, MoeDispatch
from autotune.kernels.moe_dispatch.steps import Moves, columns_of
from autotune.search_spaces import Constraint
from autotune.search_spaces.joint import number, word
from autotune.sizes import round_up
from autotune.task import Task

D = TypeVar("D", bound=DispatchedProblem)

DispatchedTask = Task[DispatchedProblem]
DispatchTask = Task[MoeDispatch]

NARROWEST = 64
"""Elements of a row that a step moves at least, unless a row has fewer."""


@dataclass(frozen=True, kw_only=True)
class Library(ExpertsLibrary[D]):
    exchange: str = word(
        "all_gather", "all_to_all",
        help="every token to every rank, or each where it is wanted, by counts that the host reads",
        say={"all_gather": "every token to every rank", "all_to_all": "the host reads counts"},
    )  # fmt: skip


def wide_enough(s: DispatchedTask, copy_kib: int, rows: int) -> bool:
    """True if a step over so many rows has enough columns."""
    return columns_of(s.problem, copy_kib, rows) >= min(NARROWEST, round_up(s.problem.hidden))


def _steps_are_wide(s: DispatchedTask, copy_kib: int, transfer_tokens: int) -> bool:
    return wide_enough(s, copy_kib, transfer_tokens)


def _tokens_exist(s: DispatchedTask, transfer_tokens: int) -> bool:
    return transfer_tokens <= round_up(s.problem.tokens)


def _parts_have_columns(s: DispatchedTask, copy_kib: int, transfer_tokens: int, split: int) -> bool:
    return split == 1 or (split - 1) * columns_of(s.problem, copy_kib, transfer_tokens) < s.problem.hidden


def _inbox_fits(s: DispatchedTask, mode: str) -> bool:
    return s.problem.inbox_bytes() <= MOST_INBOX_BYTES


MOVES = (
    Constraint("width of a step", ("copy_kib", "transfer_tokens"), _steps_are_wide,
               "a program would move fewer than 64 elements of each token at once"),
    Constraint("no more tokens than there are", ("transfer_tokens",), _tokens_exist,
               "a block may exceed a rank's tokens only by rounding up to a power of two"),
    Constraint("columns to share", ("copy_kib", "transfer_tokens", "split"), _parts_have_columns,
               "every program of a block needs columns of its own"),
    Constraint("size of the inbox", ("mode",), _inbox_fits, "the inbox needs too much memory"),
)  # fmt: skip
"""Of every mode with a dispatch of ours."""


def _work(s: DispatchedTask, transfer_tokens: int, split: int) -> int:
    return math.ceil(s.problem.tokens / transfer_tokens) * split


def _pushers_have_work(s: DispatchedTask, comm_programs: int, transfer_tokens: int, split: int) -> bool:
    return comm_programs <= _work(s, transfer_tokens, split)


def _pullers_have_work(s: DispatchedTask, comm_programs: int, transfer_tokens: int, split: int) -> bool:
    return comm_programs <= _work(s, transfer_tokens, split) * max(1, s.problem.world_size - 1)


TOKENS_TO_PUSH, TOKENS_TO_PULL = (
    Constraint("tokens to move", ("comm_programs", "transfer_tokens", "split"), has_work,
               "there are fewer parts of blocks than programs to move them")
    for has_work in (_pushers_have_work, _pullers_have_work)
)  # fmt: skip


def _words_hold_tokens(s: Task[Any], protocol: str) -> bool:
    return protocol == "signal" or bool(not s.problem.scaled and s.problem.inbox_bytes(ll=True) <= MOST_INBOX_BYTES)


LL_TOKENS = (
    LL_ARRIVE,
    Constraint("LL words of tokens", ("protocol",), _words_hold_tokens,
               "LL words carry no fp8 and no scales, and need twice the memory of tokens"),
)  # fmt: skip


def _rows_are_wide(s: DispatchTask, copy_kib: int, layout_rows: int) -> bool:
    return wide_enough(s, copy_kib, layout_rows)


def _rows_exist(s: DispatchTask, layout_rows: int) -> bool:
    return layout_rows <= round_up(s.problem.capacity)


def _type_is_known(s: DispatchTask, mode: str) -> bool:
    return multiplies(s.machine.kind, s.machine.arch, s.problem.dtype)


@dataclass(frozen=True, kw_only=True)
class Own(Moves, ExpertsMode[MoeDispatch]):
    """One kernel of ours."""

    layout_rows: int = number(1, 2, 4, 8, 16, help="rows that a program lays out at once",
                              say="{layout_rows:row} laid out at once")  # fmt: skip
    num_warps: int = number(4, 8, 16, help="warps per program", say="{num_warps:warp}")

    constraints: ClassVar[tuple[Constraint, ...]] = (
        *MOVES,
        Constraint("width of rows", ("copy_kib", "layout_rows"), _rows_are_wide,
                   "a program would lay out fewer than 64 elements of each row at once"),
        Constraint("no more rows than there are", ("layout_rows",), _rows_exist,
                   "a block may exceed the capacity only by rounding up to a power of two"),
        Constraint("element type", ("mode",), _type_is_known,
                   "not an fp8 of this machine: sm_89 and later and gfx950 have fp8 and fp8_e5m2, gfx942 has fp8_fnuz"),
    )  # fmt: skip

    @classmethod
    def words(cls, task: DispatchTask) -> dict[str, Any]:
        """Those of ``untuned``."""
        return {}

    @classmethod
    def untuned(cls, task: DispatchTask) -> Self | None:
        few = few_tokens(task)
        sizes = {"split": 1, "copy_kib": 8, "layout_rows": 1 if few else 2, "num_warps": 8, **cls.words(task)}
        shapes = (
            cls(**sizes, comm_programs=programs, transfer_tokens=transfer)
            for transfer in (1 if few else 8, 1)
            for programs in (64, 32, 16, 8, 4, 2, 1)
        )
        return MODES.first_valid(shapes, task)

    def changes(self) -> list[dict[str, Any]]:
        return [{"split": 4}, {"split": 2, "comm_programs": 32}, {"layout_rows": 4}]


@dataclass(frozen=True, kw_only=True)
class Push(Own, Protocol):
    mode: str = "push"

    title: ClassVar[str] = "push: each rank sends its tokens to their experts' ranks"
    by_stores: ClassVar[bool] = True
    constraints: ClassVar = (*Own.constraints, TOKENS_TO_PUSH, *LL_TOKENS)

    @classmethod
    def words(cls, task: DispatchTask) -> dict[str, Any]:
        few = few_tokens(task) and task.machine.kind == "cuda" and not task.problem.scaled
        return {"protocol": "ll" if few else "signal"}

    def changes(self) -> list[dict[str, Any]]:
        return [*super().changes(), {"protocol": "ll"}, {"protocol": "signal"}]


@dataclass(frozen=True, kw_only=True)
class Pull(Own):
    mode: str = "pull"

    title: ClassVar[str] = "pull: each rank loads the tokens of its experts"
    constraints: ClassVar = (*Own.constraints, TOKENS_TO_PULL)


def default(task: DispatchTask) -> Mode[MoeDispatch]:
    """Push; the library's way where its inbox does not fit."""
    return Push.untuned(task) or Library(launch="eager", exchange="all_gather")


MODES = Modes(Library, Push, Pull, default=default)
SPACE = MODES.space
