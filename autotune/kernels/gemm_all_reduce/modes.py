"""The modes of GEMM + all-reduce as they are declared, and the config used untuned."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from autotune.device_rates import Rates
from autotune.kernels import untuned
from autotune.kernels.gemm.cost import library_gemm, links, overlapped, tiled_gemm
from autotune.kernels.gemm.space import (
    operands_constraint,
    split_constraints,
    tile_constraints,
    wire_constraint,
    with_fitting_tile,
)
from autotune.kernels.gemm.tile import GemmTile
from autotune.kernels.gemm_all_reduce.problem import MOST_INBOX_BYTES, GemmAllReduce
from autotune.kernels.launching.mode import GEMM_VARIES, LibraryMode, M, Mode, Modes
from autotune.search_spaces import Constraint
from autotune.search_spaces.joint import number, word
from autotune.sizes import round_up
from autotune.task import Task

ReduceTask = Task[GemmAllReduce]

MOST_ROWS_IN_WORDS = 256
"""Beyond, searches do not begin with tiles that travel as words: with 512 rows they take 202.5 µs at best, those by
signal 184.9, of 958 configs with N=8192 K=28672 on 2 H100 (2026-11-25).
"""

SUM_BLOCKS = (512, 1024, 2048, 4096, 8192)

TRANSFER_ROWS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)

MOST_CHUNKS = 8
"""GEMMs of the library's in a call."""

PIECES = 4.0
"""Parts in which data of our kernel arrives, by the cost model."""


class Library(LibraryMode[GemmAllReduce]):
    def latency(self, task: ReduceTask, rates: Rates) -> float:
        launches = 0.0 if self.launch == "graph" else 2 * rates.launch
        return library_gemm(task.problem, rates) + links(task.problem, rates) + rates.launch + launches


PROTOCOL: Any = word(
    "signal", "ll", "sentinel",
    help="data, then a signal; or LL: words of data and flag, twice the bytes, one trip instead of two; "
         "or sentinel: data alone, polled until it is there, one trip",
    say={"signal": "data, then a signal", "ll": "LL words of data and flag", "sentinel": "sentinel words: data alone"},
)  # fmt: skip
EXCHANGE: Any = word("one_shot", "two_shot", help="each rank sums all parts, or a block's owner does",
                     say={"one_shot": "one-shot exchange", "two_shot": "two-shot exchange"})  # fmt: skip


MOST_LL_WORDS = 64
"""LL words that one thread may hold: 128 registers, of 256 threads; of more, which share them, less."""


def polled_words_fit(s: Task[Any], protocol: str, elements: int, threads: int) -> bool:
    """True if every rank's part of as many elements fits into the registers, where parts are polled at once.

    A sentinel takes half of an LL word's registers.
    """
    data = 8 if protocol == "sentinel" else 4  # bytes, of two registers
    words = round_up(s.problem.world_size) * elements * int(s.problem.result_size) // data
    return protocol == "signal" or words <= MOST_LL_WORDS * min(threads, 256)


def _ll_arrive(s: Task[Any], protocol: str) -> bool:
    return protocol == "signal" or s.machine.kind in ("cuda", "interpreter")


def _ll_are_wide(s: ReduceTask, protocol: str) -> bool:
    return protocol == "signal" or s.problem.wire == "auto"


WORDS_ARRIVE = Constraint(
    "LL words arrive", ("protocol",), _ll_arrive,
    "only on NVIDIA GPUs do ordinary stores reach a peer while their program is running",
)  # fmt: skip
WIDE_WORDS = Constraint(
    "LL words of fp8", ("protocol",), _ll_are_wide,
    "LL words hold elements of the result's type; wire=fp8 needs protocol=signal",
)  # fmt: skip


def _peers_exist(s: ReduceTask, mode: str) -> bool:
    return s.problem.world_size > 1


def _equal_chunks(s: ReduceTask, transfer_rows: int) -> bool:
    if transfer_rows >= s.problem.m:
        return transfer_rows <= max(TRANSFER_ROWS[0], round_up(s.problem.m))
    return s.problem.m % transfer_rows == 0 and s.problem.m <= MOST_CHUNKS * transfer_rows


def _no_longer_than_chunk(s: ReduceTask, sum_block: int, transfer_rows: int) -> bool:
    return sum_block <= max(SUM_BLOCKS[0], round_up(min(s.problem.m, transfer_rows) * s.problem.n))


def _row_fits(s: ReduceTask, exchange: str, sum_block: int, transfer_rows: int, protocol: str) -> bool:
    tiles = -(-min(s.problem.m, transfer_rows) * s.problem.n // sum_block)
    return s.problem.inbox_bytes(exchange, tiles, sum_block, protocol) <= MOST_INBOX_BYTES


def _ll_row_fits_registers(s: ReduceTask, protocol: str, sum_block: int, sum_warps: int) -> bool:
    return polled_words_fit(s, protocol, sum_block, 32 * sum_warps)


@dataclass(frozen=True, kw_only=True)
class CustomCollective(Mode[GemmAllReduce]):
    """The library's GEMM, then our all-reduce of its product, taken as one long row, maybe chunk by chunk."""

    mode: str = "custom_collective"
    exchange: str = EXCHANGE
    protocol: str = PROTOCOL
    transfer_rows: int = number(
        *TRANSFER_ROWS, help="transfer granularity: rows of C that one GEMM and one all-reduce take",
        say="{transfer_rows:row} per GEMM",
    )  # fmt: skip
    sum_block: int = number(*SUM_BLOCKS, help="elements of C that a program of the all-reduce sends and sums",
                            say="summed in blocks of {sum_block} by {sum_warps:warp}")  # fmt: skip
    sum_warps: int = number(4, 8, 16, help="warps of a program of the all-reduce", say="")

    title: ClassVar[str] = "our collective and the library's GEMM"
    varies: ClassVar[str] = GEMM_VARIES
    by_stores: ClassVar[bool] = True
    constraints: ClassVar = (
        WORDS_ARRIVE,
        WIDE_WORDS,
        Constraint("parts of peers", ("mode",), _peers_exist, "a single rank has nothing to exchange"),
        Constraint("chunks", ("transfer_rows",), _equal_chunks,
                   f"at most {MOST_CHUNKS} chunks, of as many rows each; one may exceed C's rows only by "
                   "rounding up to a power of two"),
        Constraint("a block within a chunk", ("sum_block", "transfer_rows"), _no_longer_than_chunk,
                   "a block may exceed a chunk only by rounding up to a power of two"),
        Constraint("size of the blocks' inbox", ("exchange", "sum_block", "transfer_rows", "protocol"), _row_fits,
                   "the inbox needs too much memory; the LL protocol needs twice as much"),
        Constraint("LL words of blocks fit", ("protocol", "sum_block", "sum_warps"), _ll_row_fits_registers,
                   "all ranks' words of a block are polled at once and do not fit into the registers"),
    )  # fmt: skip

    def latency(self, task: ReduceTask, rates: Rates) -> float:
        computation = library_gemm(task.problem, rates, max(1.0, task.problem.m / self.transfer_rows))
        return computation + links(task.problem, rates) + 2 * rates.signal + rates.launch

    @classmethod
    def untuned(cls, task: ReduceTask) -> Self | None:
        """As one would write it down without measuring; None if no block fits."""
        exchange = "two_shot" if untuned.two_shots_pay(task) else "one_shot"
        rows = next((rows for rows in TRANSFER_ROWS if rows >= task.problem.m), TRANSFER_ROWS[-1])
        shapes = (
            cls(exchange=exchange, protocol=protocol, transfer_rows=rows, sum_block=block, sum_warps=4)
            for protocol in ("sentinel", "signal")
            for block in (1024, *SUM_BLOCKS)
        )
        return MODES.first_valid(shapes, task)

    @classmethod
    def first(cls, task: ReduceTask) -> Iterator[Self]:
        base = cls.untuned(task)
        if base is not None:
            yield base
            for shots, protocol in itertools.product(("one_shot", "two_shot"), ("sentinel", "signal")):
                # Of more than 4 parts in 4 warps 2 words spill.
                warps = 8 if protocol == "signal" and task.problem.world_size > 4 else base.sum_warps
                yield base.replace(exchange=shots, protocol=protocol, sum_warps=warps)
            yield base.replace(transfer_rows=task.problem.m // 2)


def _inbox_fits(s: ReduceTask, mode: str, block_m: int, block_n: int, protocol: str) -> bool:
    tiles = -(-s.problem.m // block_m) * -(-s.problem.n // block_n)
    return s.problem.inbox_bytes(mode, tiles, block_m * block_n, protocol) <= MOST_INBOX_BYTES


def _ll_fit_registers(s: Task[Any], protocol: str, block_m: int, block_n: int, num_warps: int) -> bool:
    return polled_words_fit(s, protocol, block_m * block_n, 32 * num_warps)


WORDS_OF_TILES_FIT = Constraint(
    "LL words fit", ("protocol", "block_m", "block_n", "num_warps"), _ll_fit_registers,
    "all ranks' words of a tile are polled at once and do not fit into the registers",
)  # fmt: skip


def _persists(s: ReduceTask, schedule: str, programs_per_unit: int, split_k: int, block_m: int, block_n: int) -> bool:
    if schedule == "tile":
        return programs_per_unit == 1
    rows, columns, _ = s.problem.gemm
    tiles = -(-rows // block_m) * -(-columns // block_n)
    return programs_per_unit * s.machine.compute_units < tiles * split_k


def _all_resident(s: ReduceTask, schedule: str, programs_per_unit: int, split_k: int, combine: str) -> bool:
    return schedule == "tile" or programs_per_unit == 1 or split_k == 1 or combine == "separate"


def soonest(mode: M, modes: Modes[Any], task: Task[Any], rows: int) -> M | None:
    """A mode with a tile that fits, and the soonest protocol for as many rows to each peer; None if none is valid.

    On two ranks LL words, if twice the bytes arrive within a trip, too: at 16 sizes of up to 320 KB they took 0.92 to
    1.01 times as long as sentinel words, 0.987 in the mean; 640 KB 1.01 to 1.07 (2 H200, 2026-11-29 and 30).
    """
    problem = task.problem
    moved = (problem.world_size - 1) * rows * problem.n * problem.result_size
    protocols = untuned.soonest_protocols(task, moved)
    if problem.world_size == 2 and untuned.within_a_trip(task, 2 * moved):
        protocols = ("ll", *protocols)
    fitting = type(mode).of(with_fitting_tile(modes.space, mode.config(), task))
    return modes.first_valid((fitting.replace(protocol=protocol) for protocol in protocols), task)


@dataclass(frozen=True, kw_only=True)
class Fused(GemmTile, Mode[GemmAllReduce]):
    """Our kernel alone: a finished tile travels at once."""

    schedule: str = word("tile", "persistent", help="one program per tile and split, or persistent programs",
                         say={"tile": "one program per tile", "persistent": "persistent programs"})  # fmt: skip
    programs_per_unit: int = number(1, 2, 4, help="persistent programs per compute unit",
                                    say="{programs_per_unit:program} per compute unit")  # fmt: skip
    combine: str = word(
        "sender", "separate",
        help="who sums a tile: the program that sent this rank's part, or separate programs at the end",
        say={"sender": "the sender sums", "separate": "separate programs sum"},
    )  # fmt: skip
    protocol: str = PROTOCOL

    constraints: ClassVar[tuple[Constraint, ...]] = (
        *tile_constraints(),
        *split_constraints(),
        Constraint("size of the inbox", ("mode", "block_m", "block_n", "protocol"), _inbox_fits,
                   "the inbox needs too much memory; the LL protocol needs twice as much"),
        WORDS_ARRIVE,
        WIDE_WORDS,
        WORDS_OF_TILES_FIT,
        Constraint("persistence", ("schedule", "programs_per_unit", "split_k", "block_m", "block_n"), _persists,
                   "a persistent schedule needs more tiles than programs; schedule=tile needs programs_per_unit=1"),
        Constraint("residency", ("schedule", "programs_per_unit", "split_k", "combine"), _all_resident,
                   "a program that combines split tiles could take the place of the program that it waits for"),
    )  # fmt: skip
    by_stores: ClassVar[bool] = True
    combined_by: ClassVar[str]
    """``combine`` of an untuned config."""

    def latency(self, task: ReduceTask, rates: Rates) -> float:
        computation = tiled_gemm(task, self, rates, task.machine.compute_units)
        return overlapped(computation, links(task.problem, rates), PIECES, rates)

    def rungs(self, task: ReduceTask) -> Mapping[str, Self | str]:
        """B: parts of tiles are kept in memory until the GEMM has ended. D is the config itself."""
        return {
            "B": self.replace(phased=True), "D": self,
            "F": "a rank's own part takes the same way as the others', so that all ranks add in one order",
        }  # fmt: skip

    @classmethod
    def untuned(cls, task: ReduceTask) -> Self | None:
        """As one would write it down without measuring; None if no tile fits."""
        tile = untuned.loaded(_tile(task), task)
        base = cls(**tile, schedule="tile", programs_per_unit=1, combine=cls.combined_by, protocol="signal")
        return soonest(base, MODES, task, task.problem.m)

    @classmethod
    def first(cls, task: ReduceTask) -> Iterator[Self]:
        """With another tile, with splits, with words for few rows."""
        base = cls.untuned(task)
        if base is not None:
            yield base
            for tile in untuned.tiles_beside_default(task):
                yield base.replace(**{**tile, "block_n": _columns(tile["block_n"], task)})
            yield from base.changed(task, task.problem.m <= MOST_ROWS_IN_WORDS)

    def changed(self, task: Task[Any], in_words: bool) -> Iterator[Self]:
        for protocol in protocols(task) if in_words else ():
            if protocol != self.protocol:
                yield self.replace(protocol=protocol)
        yield self.replace(split_k=2, block_n=_columns(self.block_n, task))


@dataclass(frozen=True, kw_only=True)
class OneShot(Fused):
    mode: str = "one_shot"

    title: ClassVar[str] = "one shot: each rank gets all parts and sums them"
    combined_by: ClassVar[str] = "sender"


@dataclass(frozen=True, kw_only=True)
class TwoShot(Fused):
    mode: str = "two_shot"

    title: ClassVar[str] = "two shots: the owner sums, then sends to all"
    combined_by: ClassVar[str] = "separate"


LONG_GEMM = 5.0
"""A GEMM in one round that takes as many times as long as its exchange hides it, if its tiles fill the GPU; a shorter
one is left to the library, and the sum follows: with M=128 N=5120 K=8192 that takes 0.97 times as long (2 H100,
2026-11-25).
"""


SLOWER = 0.14
"""Share by which our tiles in several rounds take longer than the library's GEMM: with M=2048 N=5120 K=27648 they took
498 µs, the library's and then our all-reduce 434; at K=8192, where more of the exchange is hidden, 249 and 262 (M=3000;
2 H100, 2026-11-25 and 27).
"""


def rounds(task: ReduceTask) -> int:
    """Rounds of the widest tiles; one for few rows, which wait for B."""
    rows, columns, _ = task.problem.gemm
    many = rows > untuned.FEW_ROWS
    return -(-untuned.programs_of(untuned.WIDE, rows, columns) // task.machine.compute_units) if many else 1


def _tile(task: ReduceTask) -> dict[str, int]:
    """In several rounds the widest: M=1779 N=8192 K=8192 took 0.82 times as long as with square ones (2 H100)."""
    if rounds(task) > 1 and task.machine.has_tma and not task.machine.is_interpreter:
        return untuned.suited(untuned.WIDE, task)
    return untuned.default_tile(task, untuned.parts(task).exchange)


def protocols(task: Task[Any]) -> tuple[str, ...]:
    """Protocols to try. To more than 4 ranks not LL: it has twice the bytes for each, and 4 words of a tile of 16 x 64
    spill.
    """
    return ("sentinel", "signal") if task.problem.world_size > 4 else ("sentinel", "signal", "ll")


def _columns(block_n: int, task: ReduceTask) -> int:
    """A tile's columns, fewer where a thread adds more than 4 parts of few rows: up to 8 words of wider ones spill."""
    few, many = task.problem.m <= untuned.FEW_ROWS, task.problem.world_size > 4
    return min(block_n, untuned.NARROW["block_n"]) if few and many and task.machine.kind == "cuda" else block_n


def by_arithmetic(task: ReduceTask) -> type[OneShot | TwoShot | CustomCollective]:
    """The mode of an untuned config: tiles that travel as they end, in one shot or two, or the library's GEMM first."""
    problem, machine, parts = task.problem, task.machine, untuned.parts(task)
    shots = TwoShot if untuned.two_shots_pay(task) else OneShot
    if machine.is_interpreter or problem.world_size == 1 or problem.wire != "auto":
        return shots
    if rounds(task) == 1:
        pays = parts.gemm > LONG_GEMM * parts.exchange and not untuned.leaves_units_idle(task, parts.exchange)
    else:
        pays = parts.exchange * (1 - 1 / rounds(task)) > SLOWER * parts.gemm
    return shots if pays and not untuned.library_multiplies_faster(task) else CustomCollective


def default(task: ReduceTask) -> Mode[GemmAllReduce]:
    """The config used without measuring, by arithmetic; the library's way where no mode's inbox fits."""
    order = dict.fromkeys((by_arithmetic(task), TwoShot, OneShot))
    return next(filter(None, (mode.untuned(task) for mode in order)), Library(launch="eager"))


MODES = Modes(
    Library, CustomCollective, OneShot, TwoShot, default=default, tried=(OneShot, TwoShot, CustomCollective),
    laid_out=(Library, OneShot, TwoShot, CustomCollective), shared=(operands_constraint(), wire_constraint()),
)  # fmt: skip
SPACE = MODES.space
