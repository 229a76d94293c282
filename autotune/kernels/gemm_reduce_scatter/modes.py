"""The modes of GEMM + reduce-scatter as they are declared, and the config used untuned."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from autotune.device_rates import Rates, usual_rates
from autotune.kernels import untuned
from autotune.kernels.gemm.cost import PULL_SHARE, library_gemm, links, overlapped, tiled_gemm
from autotune.kernels.gemm.space import (
    FLATTENING,
    STREAMS,
    operands_constraint,
    scales_of_chunks,
    split_constraints,
    tile_constraints,
    wire_constraint,
    with_fitting_tile,
)
from autotune.kernels.gemm.tile import GemmTile
from autotune.kernels.gemm_all_reduce.modes import (
    PIECES,
    PROTOCOL,
    WORDS_ARRIVE,
    WORDS_OF_TILES_FIT,
    protocols,
    soonest,
)
from autotune.kernels.gemm_reduce_scatter.problem import MOST_ROWS_AT_ONCE, GemmReduceScatter
from autotune.kernels.launching.knobs import MEMORY
from autotune.kernels.launching.mode import GEMM_VARIES, LibraryMode, Mode, Modes
from autotune.search_spaces import Constraint
from autotune.search_spaces.joint import number, word
from autotune.sizes import round_up
from autotune.task import Task

ScatterTask = Task[GemmReduceScatter]

MOST_CHUNKS = 8
"""Chunks into which ``copy_engine`` may cut an owner's rows."""

UNITS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


class Library(LibraryMode[GemmReduceScatter]):
    def latency(self, task: ScatterTask, rates: Rates) -> float:
        launches = 0.0 if self.launch == "graph" else 2 * rates.launch
        return library_gemm(task.problem, rates) + links(task.problem, rates) + rates.launch + launches


def _peers_exist(s: ScatterTask, mode: str) -> bool:
    return s.problem.world_size > 1


PEERS = Constraint("parts of peers", ("mode",), _peers_exist, "a single rank has nothing to exchange")
SUM_BLOCK: Any = number(512, 1024, 2048, 4096, 8192, help="elements of C that a program of the final sum takes",
                        say="summed in blocks of {sum_block} by {sum_warps:warp}")  # fmt: skip
SUM_WARPS: Any = number(4, 8, 16, help="warps of a program of the final sum", say="")


class Summing(Mode[GemmReduceScatter]):
    """The library's GEMM, and in the end our sum, whose dimensions come last."""

    sum_block: int
    sum_warps: int


@dataclass(frozen=True, kw_only=True)
class CustomCollective(Summing):
    mode: str = "custom_collective"
    sum_block: int = SUM_BLOCK
    sum_warps: int = SUM_WARPS

    title: ClassVar[str] = "our collective and the library's GEMM"
    varies: ClassVar[str] = GEMM_VARIES
    constraints: ClassVar = (PEERS,)

    def latency(self, task: ScatterTask, rates: Rates) -> float:
        return library_gemm(task.problem, rates) + links(task.problem, rates) + 2 * rates.signal + rates.launch

    @classmethod
    def untuned(cls) -> Self:
        return cls(sum_block=2048, sum_warps=8)

    @classmethod
    def first(cls, task: ScatterTask) -> Iterator[Self]:
        yield cls.untuned()


def _chunk_of_sensible_size(s: ScatterTask, transfer_rows: int) -> bool:
    return transfer_rows <= max(16, round_up(s.problem.m)) and transfer_rows * MOST_CHUNKS >= s.problem.rows


@dataclass(frozen=True, kw_only=True)
class CopyEngine(Summing):
    mode: str = "copy_engine"
    transfer_rows: int = number(
        *UNITS, help="transfer granularity: rows of A (of one owner or several) that one GEMM takes before the copy",
        say="{transfer_rows:row} per copy",
    )  # fmt: skip
    gemm_streams: int = number(1, 2, 4, help="streams over which the chunks' GEMMs alternate",
                               say="GEMMs on {gemm_streams:stream}")  # fmt: skip
    sum_block: int = SUM_BLOCK
    sum_warps: int = SUM_WARPS

    title: ClassVar[str] = "copy engines move the data beside the library's GEMM"
    varies: ClassVar[str] = GEMM_VARIES
    constraints: ClassVar = (
        PEERS,
        Constraint("chunks", ("transfer_rows",), _chunk_of_sensible_size,
                   f"a chunk holds at least 1/{MOST_CHUNKS} of an owner's rows, and at most all rows of A"),
        scales_of_chunks(),
        STREAMS,
    )  # fmt: skip

    def latency(self, task: ScatterTask, rates: Rates) -> float:
        problem = task.problem
        computation = library_gemm(problem, rates, max(1.0, problem.m / self.transfer_rows))
        return overlapped(computation, links(problem, rates), max(1.0, problem.rows / self.transfer_rows), rates)

    @classmethod
    def first(cls, task: ScatterTask) -> Iterator[Self]:
        streams = 1 if task.machine.is_interpreter else 2
        for owners in (1, 2, 4):
            unit = next((rows for rows in UNITS if rows >= owners * task.problem.rows), UNITS[-1])
            yield cls(transfer_rows=unit, gemm_streams=streams, sum_block=2048, sum_warps=8)


def _tile_within_rows(s: ScatterTask, block_m: int) -> bool:
    return block_m <= max(16, round_up(s.problem.rows))


def _transfer_within_tiles(s: ScatterTask, transfer_tiles: int, block_m: int, block_n: int) -> bool:
    return transfer_tiles == 1 or transfer_tiles <= -(-s.problem.rows // block_m) * -(-s.problem.n // block_n)


def _next_turn_exists(s: ScatterTask, signals: str, schedule: str) -> bool:
    return signals == "at_once" or schedule == "persistent"


def _peers_to_order(s: ScatterTask, peer_order: str) -> bool:
    return peer_order == "rotate" or s.problem.world_size > 2


@dataclass(frozen=True, kw_only=True)
class Fused(GemmTile, Mode[GemmReduceScatter]):
    """Our kernel alone: a finished tile travels at once."""

    schedule: str = word(
        "tile", "persistent", "flattened",
        help="one program per tile; persistent; persistent with tile and k loops flattened into one",
        say={"tile": "one program per tile", "persistent": "persistent programs",
             "flattened": "persistent programs with one flattened loop"},
    )  # fmt: skip
    peer_order: str = word(
        "rotate", "interleaved", help="order of the peers' tiles: one peer after the other, or in turn",
        say={"rotate": "one peer after the other", "interleaved": "peers in turn"},
    )  # fmt: skip
    transfer_tiles: int = number(
        1, 2, 4, 8, 16, 32, help="transfer granularity: tiles of an owner that one signal covers",
        say="{transfer_tiles:tile} per signal",
    )  # fmt: skip
    signals: str = word(
        "at_once", "next_turn", help="signal a tile right after its stores, or one tile later",
        say={"at_once": "signalled at once", "next_turn": "signalled one tile later"},
    )  # fmt: skip

    constraints: ClassVar = (
        *tile_constraints(),
        *split_constraints(),
        Constraint("tile within an owner's rows", ("block_m",), _tile_within_rows,
                   "a tile has one owner and may exceed the owner's rows only by rounding up to a power of two"),
        Constraint("transfer within an owner's tiles", ("transfer_tiles", "block_m", "block_n"), _transfer_within_tiles,
                   "a transfer would cover more tiles than an owner has"),
        FLATTENING,
        Constraint("next turn", ("signals", "schedule"), _next_turn_exists,
                   "only a persistent program has a next tile; in a flattened loop these signals came early on H200"),
        Constraint("order without effect", ("peer_order",), _peers_to_order, "a single peer has no order"),
    )  # fmt: skip
    links_share: ClassVar[float] = 1.0

    def latency(self, task: ScatterTask, rates: Rates) -> float:
        """The last round of tiles, maybe the only one, is sent when nothing is left to compute."""
        (rows, columns, _), units = task.problem.gemm, task.machine.compute_units
        communication = links(task.problem, rates, self.links_share)
        visible = communication / math.ceil(self.tiles(rows, columns) / units)
        return max(tiled_gemm(task, self, rates, units) + visible, communication) + rates.signal + rates.launch

    def rungs(self, task: ScatterTask) -> Mapping[str, Self]:
        """B: parts stay where they are made, and after the GEMM owners pull them. D: an owner's part of its own tiles
        goes through memory, too.
        """
        return {"B": self.replace(phased=True), "D": self.replace(handover=MEMORY), "F": self}

    @classmethod
    def by_tiles(cls, task: ScatterTask) -> Self:
        """Each tile its own program, of a size to suit an owner's rows."""
        tile: dict[str, Any] = untuned.default_tile(task)
        tile["block_m"] = min(tile["block_m"], max(16, round_up(task.problem.rows)))
        if tile["block_m"] * tile["block_n"] < 128 * tile["num_warps"]:
            tile["num_warps"] = 4
        tile = untuned.loaded(tile, task)
        push = cls(**tile, schedule="tile", peer_order="rotate", transfer_tiles=1, signals="at_once")
        return push.fitting(task)

    def fitting(self, task: ScatterTask) -> Self:
        return self.of(with_fitting_tile(MODES.space, self.config(), task))


@dataclass(frozen=True, kw_only=True)
class Push(Fused):
    mode: str = "push"

    title: ClassVar[str] = "push: each rank sends, the receivers' tiles wait for what they need"

    @classmethod
    def in_rounds(cls, task: ScatterTask) -> Self:
        """As many tiles as fill the GPU, or more: all but the last travel beside the GEMM."""
        tile = untuned.filling_tile(task, task.problem.rows)
        # On AMD at once: beside the number of the tile that would be signalled one tile later, 1 word spills (gfx950).
        signals = "at_once" if task.machine.kind == "hip" else "next_turn"
        turns = {"schedule": "persistent", "signals": signals} if untuned.persists(task, tile) else {}
        return cls.by_tiles(task).replace(**tile, **turns).fitting(task)

    @classmethod
    def in_one_round(cls, task: ScatterTask) -> Self | None:
        tile = untuned.one_round_tile(task, task.problem.rows)
        if tile is None:
            return None
        # Pointers are level with TMA or up to 6 % faster where they need no masks; with 16 rows they take 1.07 times
        # as long, in tiles of 256 columns 2 % more (2 H100, 2026-11-25).
        unmasked = task.problem.b_order == "nk" and task.problem.k_local % tile["block_k"] == 0
        pointers = {"loads": "pointer"} if unmasked and tile["block_m"] > 16 and tile["block_n"] < 256 else {}
        return cls.by_tiles(task).replace(**tile, **pointers).fitting(task)

    @classmethod
    def first(cls, task: ScatterTask) -> Iterator[Self]:
        """In one round, in several, by tiles, with one loop over all tiles, with two programs for a tile."""
        push = cls.by_tiles(task)
        if not task.machine.is_interpreter:
            yield from filter(None, [cls.in_one_round(task)])
            yield cls.in_rounds(task)
        yield push
        for tile in untuned.tiles_beside_default(task):
            yield push.replace(**tile)
        yield push.replace(schedule="persistent", signals="next_turn")
        yield push.replace(split_k=2)
        # Where the loop is flattened, tiles on their way out take memory of their own: 262 KB in all for 128 x 256 and
        # four stages, of 232 on H100 (Triton 3.6); three fit.
        if not untuned.crowded(vars(push), task.machine):
            yield push.replace(schedule="flattened", transfer_tiles=2, num_stages=min(3, push.num_stages))


@dataclass(frozen=True, kw_only=True)
class Pull(Fused):
    mode: str = "pull"

    title: ClassVar[str] = "pull: the GEMM reads the peers' memory itself"
    links_share: ClassVar[float] = PULL_SHARE

    @classmethod
    def first(cls, task: ScatterTask) -> Iterator[Self]:
        yield cls.by_tiles(task)


def _few_rows(s: ScatterTask, mode: str) -> bool:
    return s.problem.m <= MOST_ROWS_AT_ONCE


def _parts_as_they_are(s: ScatterTask, mode: str) -> bool:
    return s.problem.wire == "auto"


@dataclass(frozen=True, kw_only=True)
class OneShot(GemmTile, Mode[GemmReduceScatter]):
    """GEMM + all-reduce's one shot, where each rank gets its rows alone: B is read once for all owners."""

    mode: str = "one_shot"
    protocol: str = PROTOCOL

    schedule: ClassVar[str] = "tile"
    combine: ClassVar[str] = "sender"
    title: ClassVar[str] = "one shot: a tile has rows of all ranks, each of which gets its own and sums them"
    by_stores: ClassVar[bool] = True
    constraints: ClassVar[tuple[Constraint, ...]] = (
        *tile_constraints(),
        *split_constraints(),
        PEERS,
        Constraint("few rows", ("mode",), _few_rows, f"beyond {MOST_ROWS_AT_ONCE} rows of A each owner has its tiles"),
        Constraint("parts as they are", ("mode",), _parts_as_they_are, "here our own part travels, too: wire=auto"),
        WORDS_ARRIVE,
        WORDS_OF_TILES_FIT,
    )  # fmt: skip

    def latency(self, task: ScatterTask, rates: Rates) -> float:
        computation = tiled_gemm(task, self, rates, task.machine.compute_units)
        return overlapped(computation, links(task.problem, rates), PIECES, rates)

    @classmethod
    def untuned(cls, task: ScatterTask) -> Self | None:
        """As one would write it down without measuring; None if no tile fits."""
        tile = untuned.loaded(untuned.default_tile(task), task)
        return soonest(cls(**tile, protocol="signal"), MODES, task, task.problem.rows)

    @classmethod
    def first(cls, task: ScatterTask) -> Iterator[Self]:
        """With other protocols, tiles, splits."""
        base = cls.untuned(task)
        if base is not None:
            yield from (base.replace(protocol=protocol) for protocol in protocols(task))
            for tile in untuned.tiles_beside_default(task):
                yield base.replace(**tile)
            yield base.replace(split_k=2)


HIDDEN = 0.12
"""Share of the GEMM's time that an exchange takes that copies of 512 rows and more are worth hiding: from 0.12 on they
took 0.78 to 0.96 times as long as our collective and the library's GEMM, at 0.06 to 0.11 0.86 to 1.4 times (19 sizes, 2
H200, 2026-11-29).
"""

BUSY = 0.6
"""Share of the compute units for which one shot has tiles of 65 to 128 rows where it is taken untuned: with 80 and more
for 132 units it took 0.88 to 0.96 times as long as any other mode; of more rows, unless they fill them, 0.99 to 1.5
times as long as our collective and the library's GEMM (2 H200, 2026-11-29).
"""


def _one_shot_pays(task: ScatterTask) -> bool:
    rows, columns, _ = task.problem.gemm
    busy = untuned.programs_of(untuned.FLAT, rows, columns) >= BUSY * task.machine.compute_units
    pays = rows <= 2 * untuned.FEW_ROWS and busy and not task.problem.scaled
    return rows <= untuned.FEW_ROWS or pays or untuned.flat_tiles_fill(task)


def default(task: ScatterTask) -> Mode[GemmReduceScatter]:
    """The config used without measuring: the first that is valid of those by arithmetic, else a push by tiles."""
    return MODES.first_valid(_by_arithmetic(task), task) or Push.by_tiles(task)


def _by_arithmetic(task: ScatterTask) -> Iterator[Mode[GemmReduceScatter]]:
    """Many rounds of tiles if the links are the bottleneck, and for more than two trips (164 x 4608 x 4608 on four took
    1.3 times as long as by the library's GEMM; H100, 2026-11-28); copies beside the library's GEMM where an owner's
    rows fill the GPU, or nearly so; few rows in one shot; else one round of tiles. Where there is no such tile, or its
    programs would wait for B, the library's GEMM first: each owner's tiles load B anew.
    """
    problem, machine, rows = task.problem, task.machine, task.problem.rows
    if machine.is_interpreter or problem.world_size == 1:
        return
    parts, library = untuned.parts(task), problem.wire == "auto"
    if parts.exchange > max(parts.gemm, 2 * usual_rates(machine).signal):
        yield Push.in_rounds(task)
        return
    unit = next((each for each in UNITS if each >= min(2048, rows) and each * MOST_CHUNKS >= rows), UNITS[-1])
    hidden = rows >= untuned.ROWS_OF_CHUNK and parts.exchange > HIDDEN * parts.gemm
    if library and (hidden or untuned.library_fills(machine, rows, problem.n, unit) or untuned.chunks_pay(task, unit)):
        yield CopyEngine(transfer_rows=unit, gemm_streams=1, sum_block=4096, sum_warps=4)
    if library and untuned.library_multiplies_faster(task):
        yield CustomCollective.untuned()
    if _one_shot_pays(task):
        yield from filter(None, [OneShot.untuned(task)])
    if library and parts.loading_b > parts.gemm:
        yield CustomCollective.untuned()
    yield from filter(None, [Push.in_one_round(task)])
    if library:
        yield CustomCollective.untuned()


MODES = Modes(
    Library, CustomCollective, Push, Pull, OneShot, CopyEngine, default=default,
    tried=(Push, CustomCollective, OneShot, CopyEngine, Pull), shared=(operands_constraint(), wire_constraint()),
)  # fmt: skip
SPACE = MODES.space
