"""The modes of the combine of experts' rows as they are declared, and the config used untuned.

A mode's dimensions are those of its bases from right to left, then its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

from autotune.kernels.launching.knobs import Knobs
from autotune.kernels.launching.mode import Mode, Modes
from autotune.kernels.moe.mode import LL_ARRIVE, ExpertsLibrary, ExpertsMode, Protocol, few_rows
from autotune.kernels.moe_combine.problem import MOST_INBOX_BYTES, CombinedProblem, MoeCombine
from autotune.kernels.moe_combine.steps import PeerOrder, Sums, columns_of
from autotune.search_spaces import Constraint
from autotune.search_spaces.joint import number, word
from autotune.sizes import round_up
from autotune.task import Task

C = TypeVar("C", bound=CombinedProblem)

CombinedTask = Task[CombinedProblem]
CombineTask = Task[MoeCombine]

NARROWEST = 64
"""Elements of a row that a step moves at least, unless a row has fewer."""
MOST_ELEMENTS = 64
"""Elements of a step that one thread may hold, in fp32."""
MOST_ROW_BYTES = 256
"""Bytes of all the rows of a step's tokens that one thread may hold."""
MOST_LL_WORDS = 64
"""LL words that one thread may hold: 128 registers."""


@dataclass(frozen=True, kw_only=True)
class Library(ExpertsLibrary[C]):
    exchange: str = word(
        "reduce_scatter", "all_to_all",
        help="sums of every token in a collective of fixed shapes, or those that there are, by counts that the host "
             "reads",
        say={"reduce_scatter": "every token's sums", "all_to_all": "the host reads counts"},
    )  # fmt: skip


def _steps_are_wide(s: CombinedTask, copy_kib: int, transfer_tokens: int) -> bool:
    return columns_of(s.problem, copy_kib, transfer_tokens) >= min(NARROWEST, round_up(s.problem.hidden))


def _tokens_exist(s: CombinedTask, transfer_tokens: int) -> bool:
    return transfer_tokens <= round_up(s.problem.tokens)


def _parts_have_columns(s: CombinedTask, copy_kib: int, transfer_tokens: int, split: int) -> bool:
    return split == 1 or (split - 1) * columns_of(s.problem, copy_kib, transfer_tokens) < s.problem.hidden


def _inbox_fits(s: CombinedTask, mode: str) -> bool:
    return s.problem.inbox_bytes(mode) <= MOST_INBOX_BYTES


SUMS = (
    Constraint("width of a step", ("copy_kib", "transfer_tokens"), _steps_are_wide,
               "a program would move fewer than 64 elements of each row at once"),
    Constraint("no more tokens than there are", ("transfer_tokens",), _tokens_exist,
               "a block may exceed a rank's tokens only by rounding up to a power of two"),
    Constraint("columns to share", ("copy_kib", "transfer_tokens", "split"), _parts_have_columns,
               "every program of a block needs columns of its own"),
    Constraint("size of the inbox", ("mode",), _inbox_fits, "the inbox needs too much memory"),
)  # fmt: skip
"""Of every mode with a combine of ours."""


def _fits_registers(s: CombinedTask, copy_kib: int, transfer_tokens: int, num_warps: int) -> bool:
    return transfer_tokens * columns_of(s.problem, copy_kib, transfer_tokens) <= MOST_ELEMENTS * 32 * num_warps


STEP_FITS = Constraint(
    "registers of a step", ("copy_kib", "transfer_tokens", "num_warps"), _fits_registers,
    "the rows that a program sums at once need more than 64 registers per thread",
)  # fmt: skip


def _rows_fit_registers(s: CombinedTask, copy_kib: int, transfer_tokens: int, **warps: int) -> bool:
    elements = transfer_tokens * columns_of(s.problem, copy_kib, transfer_tokens) * round_up(s.problem.top_k)
    return elements * s.problem.result_size <= MOST_ROW_BYTES * 32 * sum(warps.values())


def rows_fit(warps: str) -> Constraint:
    """Programs that sum a token's rows before they send have that many ``warps``."""
    return Constraint("registers of rows", ("copy_kib", "transfer_tokens", warps), _rows_fit_registers,
                      "a token's rows are loaded at once, and need more than 64 registers per thread")  # fmt: skip


def _ll_inbox_fits(s: CombinedTask, mode: str, protocol: str) -> bool:
    return protocol == "signal" or s.problem.inbox_bytes(mode, ll=True) <= MOST_INBOX_BYTES


def _ll_fit_registers(s: CombinedTask, protocol: str, copy_kib: int, transfer_tokens: int, num_warps: int) -> bool:
    elements = round_up(s.problem.top_k) * transfer_tokens * columns_of(s.problem, copy_kib, transfer_tokens)
    return protocol == "signal" or elements * s.problem.result_size // 4 <= MOST_LL_WORDS * 32 * num_warps


LL_WORDS = (
    Constraint("size of the LL inbox", ("mode", "protocol"), _ll_inbox_fits,
               "the LL protocol needs twice the memory, which is too much"),
    LL_ARRIVE,
    Constraint("LL words fit", ("protocol", "copy_kib", "transfer_tokens", "num_warps"), _ll_fit_registers,
               "the LL words of all rows of a token are polled at once and do not fit into the registers"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Senders(Knobs):
    comm_programs: int = number(
        1, 2, 4, 8, 16, 32, 64, 128, 256, 512, help="programs that send",
        say={1: "{comm_programs:program} sends", ...: "{comm_programs:program} send"},
    )  # fmt: skip


def many_ranks(task: CombinedTask) -> bool:
    """True if steps of 8 KiB, which each rank has a part of, leave no registers: 2 to 6 words of a thread spill."""
    return task.problem.world_size > 4


def _shapes(task: CombineTask) -> Iterator[dict[str, Any]]:
    """Blocks of tokens that one would write down without measuring, the best first."""
    of_few, of_many = ((1, 4, 2), (1, 2, 1), (1, 1, 4)), ((2, 1, 8), (2, 1, 4), (1, 1, 4), (1, 1, 2))
    if many_ranks(task):
        of_many = ((2, 2, 4), *of_many[1:])
    for transfer, split, kib in of_few if few_rows(task) else of_many:
        for programs in (512, 256, 128, 64, 32, 16, 8, 4, 2, 1):
            yield {"transfer_tokens": transfer, "split": split, "copy_kib": kib, "comm_programs": programs}


@dataclass(frozen=True, kw_only=True)
class Own(Sums, ExpertsMode[MoeCombine]):
    """One kernel of ours."""

    num_warps: int = number(4, 8, 16, help="warps per program", say="{num_warps:warp}")

    constraints: ClassVar[tuple[Constraint, ...]] = (*SUMS, STEP_FITS)

    @classmethod
    def words(cls, task: CombineTask) -> dict[str, Any]:
        """Those of ``untuned``."""
        raise NotImplementedError

    @classmethod
    def untuned(cls, task: CombineTask) -> Self | None:
        words = cls.words(task)
        return MODES.first_valid((cls(**words, **shape, num_warps=8) for shape in _shapes(task)), task)

    def changes(self) -> list[dict[str, Any]]:
        return [{"split": 2}, {"transfer_tokens": 1}, {"copy_kib": 4}]


def senders_have_work(s: CombinedTask, comm_programs: int, transfer_tokens: int, split: int) -> bool:
    units = math.ceil(s.problem.tokens / transfer_tokens) * split * s.problem.world_size
    return comm_programs <= units


NO_WORK = "there are fewer parts of blocks, or rows, than programs to send them"


@dataclass(frozen=True, kw_only=True)
class Summed(Own, PeerOrder, Senders):
    """A token's rows are summed where they are before they travel."""

    constraints: ClassVar = (
        *Own.constraints,
        rows_fit("num_warps"),
        Constraint("rows to send", ("comm_programs", "transfer_tokens", "split"), senders_have_work, NO_WORK),
    )

    @classmethod
    def words(cls, task: CombineTask) -> dict[str, Any]:
        return {"peer_order": "rotate"}

    def changes(self) -> list[dict[str, Any]]:
        return [*super().changes(), {"peer_order": "interleaved"}]


@dataclass(frozen=True, kw_only=True)
class Push(Summed):
    mode: str = "push"

    title: ClassVar[str] = "push: each rank sums its rows of a token, and sends the sums"


@dataclass(frozen=True, kw_only=True)
class Pull(Summed):
    mode: str = "pull"

    title: ClassVar[str] = "pull: each rank sums its rows of a token, and the token's rank loads the sums"


def _rows_to_send(s: CombineTask, comm_programs: int, split: int) -> bool:
    return comm_programs <= s.problem.capacity * split


@dataclass(frozen=True, kw_only=True)
class OneShot(Own, Senders, Protocol):
    mode: str = "one_shot"

    title: ClassVar[str] = "one shot: each rank gets all rows of its tokens and sums them"
    constraints: ClassVar = (
        *Own.constraints,
        *LL_WORDS,
        Constraint("rows to send", ("comm_programs", "split"), _rows_to_send, NO_WORK),
    )

    @classmethod
    def words(cls, task: CombineTask) -> dict[str, Any]:
        return {"protocol": "ll" if task.machine.kind == "cuda" else "signal"}

    def changes(self) -> list[dict[str, Any]]:
        fewer = {"transfer_tokens": 1, "copy_kib": 8}
        return [{"split": 2}, fewer, {"copy_kib": 4}, {"protocol": "ll"}, {"protocol": "signal"}]


def default(task: CombineTask) -> Mode[MoeCombine]:
    """Few rows as they are, sums of many; the library's way where no inbox fits."""
    order: tuple[type[Own], ...] = (OneShot, Push) if few_rows(task) else (Push, OneShot)
    found = (mode.untuned(task) for mode in order)
    return next(filter(None, found), Library(launch="eager", exchange="reduce_scatter"))


MODES = Modes(Library, Push, Pull, OneShot, default=default)
SPACE = MODES.space
