"""The modes of all-gather + GEMM as they are declared: those with a GEMM of ours in Triton, and the untuned config."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from autotune.device_rates import Rates, usual_rates
from autotune.dtypes import SCALE_BLOCK, WGMMA_ROWS
from autotune.kernels import untuned
from autotune.kernels.all_gather_gemm import space
from autotune.kernels.all_gather_gemm.library_modes import (
    COMM_PROGRAMS,
    COPY_KIB,
    PEER_ORDER,
    PROGRAMS,
    TRANSFER_ROWS,
    CopyEngine,
    CustomCollective,
    Library,
    at_most,
    moved,
    pieces_of,
)
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.all_gather_gemm.space import GatherTask
from autotune.kernels.all_gather_gemm.specialized_modes import ROWS_SPECIALIZED, WarpSpecialized
from autotune.kernels.gemm.cost import PULL_SHARE, awaited, overlapped, tiled_gemm
from autotune.kernels.gemm.space import pipeline_bytes, with_fitting_tile
from autotune.kernels.gemm.tile import GemmTile
from autotune.kernels.launching.mode import Mode, Modes
from autotune.machine import Machine
from autotune.search_spaces.joint import dimensions_of, flag, number, word
from autotune.sizes import round_up

SCHEDULE: Any = word(
    "tile", "persistent", "flattened",
    help="one program per tile; persistent; persistent with tile and k loops flattened into one",
    say={"tile": "one program per tile", "persistent": "persistent programs",
         "flattened": "persistent programs with one flattened loop"},
)  # fmt: skip

PIECES = 4.0
"""Parts in which data of a direct pull arrives, by the cost model."""


class Ours(GemmTile, Mode[AllGatherGemm]):
    """Our GEMM."""

    schedule: str

    @classmethod
    def like(cls, other: Ours, **changed: Any) -> Self:
        """With the dimensions of another mode, which has all of this one's."""
        same: dict[str, Any] = {each.name: getattr(other, each.name) for each in dimensions_of(cls)}
        return cls(**same | changed)


@dataclass(frozen=True, kw_only=True)
class Pull(Ours):
    mode: str = "pull"
    split_k: int = 1  # no dimension
    schedule: str = SCHEDULE

    title: ClassVar[str] = "pull: the GEMM reads the peers' memory itself"
    constraints: ClassVar = space.PULL

    def latency(self, task: GatherTask, rates: Rates) -> float:
        """Every column of tiles reads A over the links."""
        problem, columns = task.problem, math.ceil(task.problem.n_local / self.block_n)
        computation = tiled_gemm(task, self, rates, task.machine.compute_units)
        communication = problem.bytes_moved * columns / (rates.links * PULL_SHARE)
        return overlapped(computation, communication, PIECES, rates)

    @classmethod
    def first(cls, task: GatherTask) -> Iterator[Self]:
        """By TMA, where no step would cross into the next shard. Square tiles where wide ones are crowded: addresses in
        peers' memory take more registers.
        """
        pull = cls.like(Push.by_tiles(task))
        if untuned.crowded(pull.config(), task.machine):
            pull = pull.replace(**untuned.SQUARE)
        yield from filter(None, [MODES.first_valid([pull, pull.replace(loads="pointer")], task)])


@dataclass(frozen=True, kw_only=True)
class Staged(Ours):
    """Some programs move units of A into an inbox, and signal them; the GEMM's wait for what they need."""

    preload_b: bool = flag(help="load the first step of B before waiting for A", say="B loaded before the wait")
    schedule: str = SCHEDULE
    transfer_rows: int = TRANSFER_ROWS
    k_chunks: int = number(1, 2, 4, 8, 16, help="ranges of K that are sent and awaited one after the other",
                           say={1: "", ...: "K in {k_chunks} chunks"})  # fmt: skip
    comm_programs: int = COMM_PROGRAMS
    copy_kib: int = COPY_KIB
    peer_order: str = PEER_ORDER
    push_site: str = "same_launch"  # a dimension of the push
    head_start: int = number(
        0, 1, 2, 3, 4, 6, 8, help="tiles the GEMM programs take before the communicating programs join them",
        say={0: "", ...: "its programs join the GEMM after {head_start:tile}"},
    )  # fmt: skip

    saturating: ClassVar[int]
    """Communicating programs that fill the links."""
    links_share: ClassVar[float] = 1.0

    def latency(self, task: GatherTask, rates: Rates) -> float:
        problem, units = task.problem, task.machine.compute_units
        if self.schedule != "tile" and self.head_start == 0:
            units -= self.comm_programs // 2
        computation = tiled_gemm(task, self, rates, units)
        share = min(1.0, self.comm_programs / self.saturating) * self.links_share
        communication = moved(problem, rates, self.copy_kib, share)
        programs = self.tiles(problem.m, problem.n_local)
        pieces = pieces_of(problem, self.transfer_rows) * self.k_chunks
        visible = awaited(problem, programs, units) / self.k_chunks
        return overlapped(computation, communication, pieces, rates, visible)


@dataclass(frozen=True, kw_only=True)
class PullStaged(Staged):
    mode: str = "pull_staged"

    title: ClassVar[str] = "pull, staged: some programs fetch, the GEMM waits for what it needs"
    constraints: ClassVar = space.PULL_STAGED
    saturating: ClassVar[int] = 32
    links_share: ClassVar[float] = PULL_SHARE

    @classmethod
    def first(cls, task: GatherTask) -> Iterator[Self]:
        yield cls.like(Push.by_tiles(task))


@dataclass(frozen=True, kw_only=True)
class Push(Staged):
    mode: str = "push"
    push_site: str = word(
        "same_launch", "same_stream", "side_stream",
        help="place of the push: in the GEMM's launch, before it, or on a stream beside it",
        say={"same_launch": "in the GEMM's launch", "same_stream": "in a launch before the GEMM",
             "side_stream": "on a stream beside the GEMM"},
    )  # fmt: skip

    title: ClassVar[str] = "push: each rank sends, the receivers' tiles wait for what they need"
    constraints: ClassVar = space.PUSH
    boundaries: ClassVar[int] = 2
    saturating: ClassVar[int] = 8

    def rungs(self, task: GatherTask) -> Mapping[str, Ours | str]:
        """B: push, barrier of all ranks, GEMM."""
        joins = self.head_start if self.push_site == "same_launch" else 0
        dataflow = self.replace(push_site="same_launch", head_start=joins)
        separate = dataflow.replace(push_site="same_stream", head_start=0)
        return {"B": separate.replace(phased=True), "D": dataflow, "F": dataflow.direct(task.problem)}

    def direct(self, problem: AllGatherGemm) -> Pull | str:
        """Each tile loads A from its owner, if there is one column of tiles: of several each would do so again."""
        columns = -(-problem.n_local // self.block_n)
        if self.split_k != 1:
            return "the direct pull does not split K, so its tiles would not be these"
        if problem.gathered:
            return "the direct pull gathers no A that it could give back"
        if columns > 1:
            return f"each of its {columns} columns of tiles would load A over the links, {columns} times the bytes"
        return Pull.like(self, schedule="persistent" if self.schedule == "flattened" else self.schedule)

    @classmethod
    def by_tiles(cls, task: GatherTask) -> Self:
        """A push in the GEMM's own launch with a tile to suit M."""
        problem, machine = task.problem, task.machine
        tile: dict[str, Any] = untuned.default_tile(task)
        if problem.quantised:
            tile |= {"block_n": 2 * SCALE_BLOCK, "num_stages": min(3, tile["num_stages"])}
            tile |= {"block_m": min(64, tile["block_m"])} if tile["num_warps"] == 4 else {}
            tile |= {"block_k": min(tile["block_k"], 128 // problem.element_size)}
        push = cls(
            **untuned.loaded(tile, task),
            preload_b=False,
            schedule="tile",
            transfer_rows=min(256, max(16, round_up(problem.shard[0]))),
            k_chunks=1,
            comm_programs=min(16, machine.compute_units // 4),
            copy_kib=4 if problem.m <= 64 else 8 if problem.m <= 512 else 16,
            peer_order="fanout" if problem.m <= 512 else "rotate",
            push_site="same_launch",
            head_start=0,
        )
        return push.fitting(task)

    def fitting(self, task: GatherTask) -> Self:
        return self.of(with_fitting_tile(MODES.space, self.config(), task))

    @classmethod
    def of_few_rows(cls, task: GatherTask) -> Iterator[Self]:
        """In 16 bits, where it beats our collective and the library's GEMM. With a long K by long steps: 8 x 18432 x
        16384 and 8 x 59136 x 8192 took 0.94 and 0.97 times as long (2 H100, 2026-11-27), 6 and 16 x 10240 x 8192 0.93
        and 0.96. By tiles that run at once where the library's leave a quarter of two rounds idle: 8 x 49152 x 6144 and
        16, 24, 40 and 64 x 35840 x 5120 took 0.89, 0.89, 0.97, 0.99 and 0.92 times as long (2 H200, 2026-11-29).
        """
        problem, units = task.problem, task.machine.compute_units
        if problem.scaled or task.machine.kind != "cuda":
            return
        narrow, flat = (-(-problem.n_local // tile["block_n"]) for tile in (untuned.NARROW, untuned.FLAT))
        if problem.k >= LONG_K and narrow >= units / 2 and problem.m <= VERY_FEW_ROWS:
            deep = {**untuned.DEEP, "num_stages": 4} if narrow <= units else untuned.DEEP
            yield cls.by_tiles(task).replace(**deep).fitting(task)
        elif units < flat < 2 * (1 - LEFT_IDLE) * units:
            yield from cls.at_once(task)

    @classmethod
    def at_once(cls, task: GatherTask) -> Iterator[Self]:
        """Narrow tiles of few rows with so few stages that they all run at once, several on a compute unit."""
        push, machine = cls.by_tiles(task), task.machine
        for block_k, stages in ((128, 3), (64, 4)):
            tile = push.replace(block_n=64, block_k=block_k, num_stages=stages, group_m=1, num_warps=4, copy_kib=16)
            held = pipeline_bytes(task, tile.block_m, tile.block_n, block_k, stages)
            programs = tile.tiles(task.problem.m, task.problem.n_local) + tile.comm_programs
            if programs <= machine.compute_units * (machine.shared_memory // held):
                yield tile.fitting(task)

    @classmethod
    def filling(cls, task: GatherTask) -> Iterator[Self]:
        """With a tile that has a program for nearly every compute unit. Half of K goes ahead where tiles would wait for
        more than a signal takes.
        """
        problem, units = task.problem, task.machine.compute_units
        tile = untuned.filling_tile(task, problem.m)
        two_owners = problem.m >= MOST_ROWS_BESIDE_TILES and not problem.tiled_by_shard(tile["block_m"])
        if two_owners or problem.quantised:
            return
        persistent = {"schedule": "persistent", "head_start": 2} if untuned.persists(task, tile) else {}
        push = cls.by_tiles(task).replace(
            **tile, **persistent, copy_kib=16, comm_programs=at_most(PROGRAMS, min(20, units // 2)),
            transfer_rows=min(512, max(16, round_up(problem.shard[0]))),
        )  # fmt: skip
        programs = untuned.programs_of(tile, problem.m, problem.n_local)
        visible = untuned.parts(task).exchange * awaited(problem, programs, units)
        if visible / 2 > usual_rates(task.machine).signal:
            yield push.replace(k_chunks=2)
        yield push.fitting(task)

    @classmethod
    def first(cls, task: GatherTask) -> Iterator[Self]:
        """The filling tile and the soonest, with one loop over all tiles, and for few rows."""
        push = cls.by_tiles(task)
        if task.machine.is_interpreter:
            yield push
            yield push.replace(schedule="persistent", comm_programs=1, head_start=2)
            yield push.replace(k_chunks=4)
        else:
            yield from cls.filling(task)
            yield push
            tiles = untuned.tiles_beside_default(task)
            for tile in tiles:
                yield push.replace(**tile)
            for tile in tiles[:1]:
                yield push.replace(**{**tile, "schedule": "flattened", "comm_programs": 12, "head_start": 2})
            if task.problem.m <= untuned.FEW_ROWS:
                yield from cls.at_once(task)
                yield from push.sent_by_idle_units(task)
        yield from push.streaming(task.machine)
        yield push.replace(loads="pointer")

    def sent_by_idle_units(self, task: GatherTask) -> Iterator[Self]:
        """By as many programs as tiles leave compute units idle: 64 x 10240 x 8192 took 34.5 µs by 48 of them, 36.9 by
        16 (2 H200, 2026-11-29).
        """
        units = task.machine.compute_units
        idle = min(units - self.tiles(task.problem.m, task.problem.n_local), units // 2)
        if idle > self.comm_programs:
            yield self.replace(comm_programs=at_most(PROGRAMS, idle))

    def streaming(self, machine: Machine) -> Sequence[Self]:
        """For few rows: deep steps of B and many splits, all of them loading before A has arrived."""
        deep = self.replace(
            block_n=64, block_k=512, split_k=16, preload_b=True, num_stages=1, num_warps=8, loads="pointer",
            comm_programs=min(8, machine.compute_units // 4), copy_kib=2,
        )  # fmt: skip
        # A preload may take a stage more, see _preload_fits: of 48 KiB a fifth one does not fit.
        stages = 4 if self.block_m < WGMMA_ROWS else 3
        return [deep, deep.replace(block_n=128, block_k=128, split_k=4, num_stages=stages)]


VERY_FEW_ROWS, LONG_K, LEFT_IDLE = 16, 7168, 0.25
"""See ``Push.of_few_rows``."""

MOST_ROWS_BESIDE_TILES = 256
"""From here on a tile whose rows have two owners costs more than the overlap gains."""


def default(task: GatherTask) -> Mode[AllGatherGemm]:
    """The config used without measuring: the first that is valid of those by arithmetic, else a push by tiles."""
    return MODES.first_valid(_by_arithmetic(task), task) or Push.by_tiles(task)


def _by_arithmetic(task: GatherTask) -> Iterator[Mode[AllGatherGemm]]:
    """Warp specialization of many rows, of few our all-gather and then the library's GEMM, where the links take less
    time than that; else, and where A is too long for words, tiles that overlap. An activation behind the library's GEMM
    would be a launch of its own, so warp specialization comes first where it takes fewer rounds than a push.
    """
    problem, machine, few = task.problem, task.machine, task.problem.m <= untuned.FEW_ROWS
    if machine.is_interpreter or problem.world_size == 1:
        return
    many = problem.rows_layout and problem.shard[0] >= ROWS_SPECIALIZED
    if problem.gated:
        if many and WarpSpecialized.saves_rounds(task):
            yield from WarpSpecialized.filling(task)
        if problem.rows_layout and not few and untuned.persists(task, untuned.default_tile(task)):
            yield from Push.filling(task)
        return
    parts, by_signals = untuned.parts(task), CustomCollective.by_signals(task)
    if parts.gemm > parts.exchange:
        specialized = many and WarpSpecialized.pays(task)
        if specialized:
            yield from WarpSpecialized.filling(task)
        yield from CopyEngine.filling(task)
        if few and problem.rows_layout:
            yield from Push.of_few_rows(task)
        yield CustomCollective.in_words(task)
        if not problem.rows_layout:
            yield by_signals  # every tile needs all shards
        if not problem.rows_layout or few:
            return
        if not specialized or untuned.library_multiplies_faster(task):
            yield by_signals
    if problem.rows_layout:
        yield from Push.filling(task)
        yield by_signals


MODES = Modes(
    Library, CustomCollective, Pull, PullStaged, Push, WarpSpecialized, CopyEngine, default=default,
    tried=(WarpSpecialized, Push, CustomCollective, CopyEngine, PullStaged, Pull),
    shared=space.SHARED,
)  # fmt: skip
SPACE = MODES.space
