"""The modes of GEMM + all-reduce + residual + RMSNorm as they are declared: who does which of the two parts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from autotune.device_rates import Rates
from autotune.kernels import untuned
from autotune.kernels.all_reduce_norm import modes as norming
from autotune.kernels.all_reduce_norm.modes import FP8_NORM, NORM_ROWS, NORM_WARPS, SENDERS, Norming, norm_shapes
from autotune.kernels.gemm.cost import library_gemm, links, overlapped
from autotune.kernels.gemm.space import operands_constraint, wire_constraint
from autotune.kernels.gemm_all_reduce import modes as reducing
from autotune.kernels.gemm_all_reduce.modes import EXCHANGE, PROTOCOL
from autotune.kernels.gemm_all_reduce.problem import MOST_INBOX_BYTES
from autotune.kernels.gemm_all_reduce_norm.problem import GemmAllReduceNorm
from autotune.kernels.launching.mode import GRAPHS, LibraryMode, Mode, Modes
from autotune.search_spaces import Constraint
from autotune.task import Task

NormedTask = Task[GemmAllReduceNorm]


@dataclass(frozen=True, kw_only=True)
class LibraryCollective(Norming, LibraryMode[GemmAllReduceNorm]):
    mode: str = "library_collective"
    norm_rows: int = NORM_ROWS
    norm_warps: int = NORM_WARPS

    title: ClassVar[str] = norming.LibraryCollective.title
    constraints: ClassVar[tuple[Constraint, ...]] = (GRAPHS, *norming.OF_NORM)

    def latency(self, task: NormedTask, rates: Rates) -> float:
        return overlapped(library_gemm(task.problem, rates), links(task.problem, rates), reducing.PIECES, rates)

    @classmethod
    def untuned(cls, task: NormedTask) -> Self | None:
        """As one would write it down without measuring; None if no block fits."""
        return MODES.first_valid((cls(launch="eager", **shape) for shape in norm_shapes(task.problem.n)), task)

    @classmethod
    def first(cls, task: NormedTask) -> Iterator[Self]:
        yield from filter(None, [cls.untuned(task)])


def _inbox_fits(s: NormedTask, exchange: str, norm_rows: int, protocol: str) -> bool:
    return s.problem.norm.inbox_bytes(exchange, norm_rows, protocol) <= MOST_INBOX_BYTES


@dataclass(frozen=True, kw_only=True)
class CustomCollective(Norming, Mode[GemmAllReduceNorm]):
    """The library's GEMM, then our all-reduce with the norm."""

    mode: str = "custom_collective"
    exchange: str = EXCHANGE
    protocol: str = PROTOCOL
    norm_rows: int = NORM_ROWS
    norm_warps: int = NORM_WARPS
    senders: int = SENDERS

    title: ClassVar[str] = reducing.CustomCollective.title
    varies: ClassVar[str] = reducing.CustomCollective.varies
    by_stores: ClassVar[bool] = True
    constraints: ClassVar = (
        reducing.WORDS_ARRIVE,
        reducing.WIDE_WORDS,
        *norming.OF_NORM,
        *norming.OF_ROWS,
        Constraint("size of the rows' inbox", ("exchange", "norm_rows", "protocol"), _inbox_fits,
                   "the inbox needs too much memory; the LL protocol needs twice as much"),
    )  # fmt: skip

    def latency(self, task: NormedTask, rates: Rates) -> float:
        return library_gemm(task.problem, rates) + links(task.problem, rates) + 2 * rates.signal + rates.launch

    @classmethod
    def untuned(cls, task: NormedTask) -> Self | None:
        """As one would write it down without measuring; None if no block fits."""
        exchange = "two_shot" if untuned.two_shots_pay(task) else "one_shot"
        shapes = (
            cls(exchange=exchange, protocol=protocol, senders=0, **shape)
            for protocol in ("sentinel", "signal")
            for shape in norm_shapes(task.problem.n, task.problem.world_size)
        )
        return MODES.first_valid(shapes, task)

    @classmethod
    def first(cls, task: NormedTask) -> Iterator[Self]:
        base = cls.untuned(task)
        if base is not None:
            yield base
            for shots, protocol in itertools.product(("one_shot", "two_shot"), ("sentinel", "signal")):
                yield base.replace(exchange=shots, protocol=protocol)
            yield base.replace(senders=4)
            yield base.replace(protocol="ll")


class Fused(Norming, reducing.Fused):
    """Our GEMM with the all-reduce, then our sum and norm."""

    alone: ClassVar[type[reducing.Fused]]
    """The mode without the norm."""
    constraints: ClassVar[tuple[Constraint, ...]] = (*reducing.Fused.constraints, *norming.OF_NORM)

    @classmethod
    def untuned(cls, task: Task[Any]) -> Self | None:
        """As one would write both down; None if nothing fits."""
        base = cls.alone.untuned(task)
        shapes = norm_shapes(task.problem.n) if base is not None else ()
        return MODES.first_valid((cls(**vars(base), **shape) for shape in shapes), task)

    @classmethod
    def first(cls, task: Task[Any]) -> Iterator[Self]:
        base = cls.untuned(task)
        if base is not None:
            yield base
            yield from base.changed(task, in_words=True)


@dataclass(frozen=True, kw_only=True)
class OneShot(Fused, reducing.OneShot):
    mode: str = "one_shot"
    norm_rows: int = NORM_ROWS
    norm_warps: int = NORM_WARPS

    alone: ClassVar = reducing.OneShot


@dataclass(frozen=True, kw_only=True)
class TwoShot(Fused, reducing.TwoShot):
    mode: str = "two_shot"
    norm_rows: int = NORM_ROWS
    norm_warps: int = NORM_WARPS

    alone: ClassVar = reducing.TwoShot


def default(task: NormedTask) -> Mode[GemmAllReduceNorm]:
    """The library's GEMM, then our all-reduce with the norm: nobody's tile has to fit. A GEMM that is long enough does
    it in one shot, and one of several rounds in two, as in GEMM + all-reduce.
    """
    shots: dict[type[Any], type[Fused]] = {} if task.machine.is_interpreter else {reducing.OneShot: OneShot}
    if shots and reducing.rounds(task) > 1:
        shots[reducing.TwoShot] = TwoShot
    fused = shots.get(reducing.by_arithmetic(task))
    chosen = (fused and fused.untuned(task)) or CustomCollective.untuned(task) or LibraryCollective.untuned(task)
    return chosen or reducing.Library(launch="eager")


MODES = Modes(
    reducing.Library, LibraryCollective, CustomCollective, OneShot, TwoShot, default=default,
    laid_out=(reducing.Library, OneShot, TwoShot, CustomCollective, LibraryCollective),
    shared=(operands_constraint(), wire_constraint(), FP8_NORM),
)  # fmt: skip
SPACE = MODES.space
