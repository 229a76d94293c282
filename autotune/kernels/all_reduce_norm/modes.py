"""The modes of all-reduce + residual + RMSNorm as they are declared, and the config used untuned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from autotune.device_rates import Rates
from autotune.dtypes import rounds_to_fp8
from autotune.kernels.all_reduce_norm.problem import AllReduceNorm
from autotune.kernels.gemm_all_reduce import modes as reducing
from autotune.kernels.gemm_all_reduce.modes import PROTOCOL, WORDS_ARRIVE, polled_words_fit
from autotune.kernels.gemm_all_reduce.problem import MOST_INBOX_BYTES
from autotune.kernels.launching.knobs import Knobs
from autotune.kernels.launching.mode import GRAPHS, LibraryMode, Mode, Modes
from autotune.kernels.untuned import two_shots_pay
from autotune.search_spaces import Constraint
from autotune.search_spaces.joint import number
from autotune.sizes import round_up
from autotune.task import Task

NormTask = Task[AllReduceNorm]

MOST_ELEMENTS = 64
"""Elements of a block that one thread may hold, in fp32, beside residual and weight."""

FEWEST_ELEMENTS = 4
"""Elements of a block for each thread, so that a row is not spread over threads without work."""

MOST_THREADS = 1024

WARPS = (4, 8, 16, 32, 2, 1)
"""Warps of a norming program in the order in which they are tried."""

NORM_ROWS: Any = number(1, 2, 4, 8, 16, help="transfer granularity: rows of a norming program",
                        say="{norm_rows:row} per norming program")  # fmt: skip
NORM_WARPS: Any = number(1, 2, 4, 8, 16, 32, help="warps of a norming program", say="of {norm_warps:warp}")
SENDERS: Any = number(
    0, 1, 2, 4, 8, help="extra programs per row block that only send; 0: the summing program sends",
    say={0: "", 1: "1 program per block only sends", ...: "{senders} programs per block only send"},
)  # fmt: skip


def _threads(s: Task[Any], warps: int) -> int:
    return warps * max(32, int(s.machine.warp_size))


def _row(s: Task[Any]) -> int:
    return round_up(s.problem.n)


def _no_more_than_problem(s: Task[Any], norm_rows: int) -> bool:
    return norm_rows <= round_up(s.problem.m)


def _program_exists(s: Task[Any], norm_warps: int) -> bool:
    return _threads(s, norm_warps) <= MOST_THREADS


def _fits_registers(s: Task[Any], norm_rows: int, norm_warps: int) -> bool:
    return norm_rows * _row(s) <= MOST_ELEMENTS * _threads(s, norm_warps)


def _feeds_every_thread(s: Task[Any], norm_rows: int, norm_warps: int) -> bool:
    return norm_warps == 1 or norm_rows * _row(s) >= FEWEST_ELEMENTS * _threads(s, norm_warps)


def _ll_fit_registers(s: Task[Any], protocol: str, norm_rows: int, norm_warps: int) -> bool:
    return polled_words_fit(s, protocol, norm_rows * _row(s), _threads(s, norm_warps))


def _senders_have_columns(s: Task[Any], senders: int) -> bool:
    return senders <= 1 or ((senders - 1) * (_row(s) // senders) < s.problem.n and _row(s) // senders >= 64)


def _inbox_fits(s: NormTask, mode: str, norm_rows: int, protocol: str) -> bool:
    return s.problem.inbox_bytes(mode, norm_rows, protocol) <= MOST_INBOX_BYTES


def _norm_is_rounded(s: Task[Any], mode: str) -> bool:
    return s.problem.quantised == "none" or rounds_to_fp8(s.machine.kind, s.machine.arch)


FP8_NORM = Constraint("a norm in fp8", ("mode",), _norm_is_rounded,
                      "GPUs round to fp8 from sm_89 on, and gfx942 and gfx950")  # fmt: skip

OF_NORM = (
    Constraint("no more rows than there are", ("norm_rows",), _no_more_than_problem,
               "a block may exceed the problem's rows only by rounding up to a power of two"),
    Constraint("size of a norming program", ("norm_warps",), _program_exists, "a program has at most 1024 threads"),
    Constraint("registers of a row", ("norm_rows", "norm_warps"), _fits_registers,
               "a block's rows need more than 64 registers per thread"),
    Constraint("a thread's share of a row", ("norm_rows", "norm_warps"), _feeds_every_thread,
               "a thread gets fewer than 4 elements of the block"),
)  # fmt: skip

OF_ROWS = (
    Constraint("LL words of rows fit", ("protocol", "norm_rows", "norm_warps"), _ll_fit_registers,
               "all ranks' words of a block are polled at once and do not fit into the registers"),
    Constraint("columns to send", ("senders",), _senders_have_columns,
               "every sending program needs at least 64 columns of its own"),
)  # fmt: skip
"""Constraints of our all-reduce of rows."""


def norm_shapes(columns: int, parts: int = 1) -> Iterator[dict[str, Any]]:
    """Rows and warps that one would write down without measuring, the best first: a row by threads of 16 elements at
    most, which also hold ``parts`` of it; of 8 where these are many. With 8 parts of 16 rows of 8192 that took 0.93 of
    the time (H200, without links).
    """
    wide = 16 if parts <= 4 else 8
    enough = [warps for warps in WARPS if round_up(columns) <= wide * 32 * warps]
    for warps in dict.fromkeys((*enough, *WARPS)):
        yield {"norm_rows": 1, "norm_warps": warps}


class Norming(Knobs):
    """Our norm, whose dimensions may stand anywhere among a mode's."""

    norm_rows: int
    norm_warps: int


class Library(LibraryMode[AllReduceNorm]):
    def latency(self, task: NormTask, rates: Rates) -> None:
        return None


@dataclass(frozen=True, kw_only=True)
class LibraryCollective(Norming, LibraryMode[AllReduceNorm]):
    mode: str = "library_collective"
    norm_rows: int = NORM_ROWS
    norm_warps: int = NORM_WARPS

    title: ClassVar[str] = "the library's all-reduce, then one of our kernels"
    constraints: ClassVar[tuple[Constraint, ...]] = (GRAPHS, *OF_NORM)

    def latency(self, task: NormTask, rates: Rates) -> None:
        return None

    @classmethod
    def untuned(cls, task: NormTask) -> Self | None:
        """As one would write it down without measuring; None if no block fits."""
        return MODES.first_valid((cls(launch="eager", **shape) for shape in norm_shapes(task.problem.n)), task)

    @classmethod
    def first(cls, task: NormTask) -> Iterator[Self]:
        yield from filter(None, [cls.untuned(task)])


@dataclass(frozen=True, kw_only=True)
class Exchanging(Norming, Mode[AllReduceNorm]):
    """One kernel of ours."""

    norm_rows: int = NORM_ROWS
    norm_warps: int = NORM_WARPS
    senders: int = SENDERS
    protocol: str = PROTOCOL

    by_stores: ClassVar[bool] = True
    constraints: ClassVar = (
        *OF_NORM,
        *OF_ROWS,
        Constraint("size of the inbox", ("mode", "norm_rows", "protocol"), _inbox_fits,
                   "the inbox needs too much memory; the LL protocol needs twice as much"),
        WORDS_ARRIVE,
    )  # fmt: skip

    def latency(self, task: NormTask, rates: Rates) -> None:
        return None

    @classmethod
    def untuned(cls, task: NormTask) -> Self | None:
        """As one would write it down without measuring; None if no block fits."""
        shapes = (
            cls(**shape, senders=0, protocol=protocol)
            for protocol in ("sentinel", "signal")
            for shape in norm_shapes(task.problem.n, task.problem.world_size)
        )
        return MODES.first_valid(shapes, task)

    @classmethod
    def first(cls, task: NormTask) -> Iterator[Self]:
        """With protocol, senders and warps changed."""
        base = cls.untuned(task)
        if base is not None:
            other = base.replace(norm_warps=2 * base.norm_warps if 2 * base.norm_warps in WARPS else 16)
            yield base
            yield base.replace(senders=4)
            yield base.replace(protocol="ll")
            yield other
            yield other.replace(protocol="ll")
            yield other.replace(protocol="ll", senders=4)
            yield base.replace(protocol="sentinel")
            yield other.replace(protocol="sentinel")
            yield other.replace(protocol="sentinel", senders=4)


@dataclass(frozen=True, kw_only=True)
class OneShot(Exchanging):
    mode: str = "one_shot"

    title: ClassVar[str] = reducing.OneShot.title


@dataclass(frozen=True, kw_only=True)
class TwoShot(Exchanging):
    mode: str = "two_shot"

    title: ClassVar[str] = reducing.TwoShot.title


def default(task: NormTask) -> Mode[AllReduceNorm]:
    """Two shots where they pay; the library's all-reduce where no inbox fits."""
    order = (TwoShot, OneShot) if two_shots_pay(task) else (OneShot, TwoShot)
    found = (mode.untuned(task) for mode in (*order, LibraryCollective))
    return next(filter(None, found), Library(launch="eager"))


MODES = Modes(Library, LibraryCollective, OneShot, TwoShot, default=default, shared=(FP8_NORM,))
SPACE = MODES.space
