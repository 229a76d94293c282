"""All-gather + GEMM by warp specialization, as the mode is declared."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import ClassVar, Self

from autotune.device_rates import Rates, usual_rates
from autotune.dtypes import WGMMA_ROWS
from autotune.kernels import untuned
from autotune.kernels.all_gather_gemm import space
from autotune.kernels.all_gather_gemm.library_modes import TRANSFER_ROWS, UNITS, at_most, pieces_of
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.all_gather_gemm.space import GatherTask
from autotune.kernels.gemm.cost import links, overlapped, tiled_gemm
from autotune.kernels.gemm.specialized import SWIZZLED, SpecializedTile, promotes
from autotune.kernels.launching.mode import Mode
from autotune.search_spaces.joint import number
from autotune.sizes import round_up

TILES = (
    (128, 256, 4, "cooperative", 1.0),
    (128, 128, 6, "cooperative", 0.54),
    (64, 256, 4, "pingpong", 0.58),
    (64, 128, 8, "pingpong", 0.32),
)
"""Rows, columns, stages and consumers of tiles, and the time of one in that of the widest: 2048 x 14336 x 8192 took
720, 747, 778 and 834 µs; 866 x 4608 x 4096 in two, three, two and four rounds 86, 69, 55 and 62 (one H200, a rank that
is its own peer, 2026-11-29).
"""

ROWS_TOGETHER = 1024
"""Rows walked column by column."""

TAIL_SPLITS = (1, 2, 4)

JOINING = 4.0
"""Microseconds by which a further part of K adds to its share of a round: of rounds of 34 µs 1558 x 2560 x 3072 took 68
in two, 56 in one and a half, and 55 in one and a quarter (one H200, a rank that is its own peer, 2026-11-29).
"""


@dataclass(frozen=True, kw_only=True)
class WarpSpecialized(SpecializedTile, Mode[AllGatherGemm]):
    mode: str = "warp_specialized"
    transfer_rows: int = TRANSFER_ROWS
    sending_warps: int = number(1, 2, help="warps of each program that push", say="{sending_warps:warp} of each push")
    across_shards: int = number(
        0, 1, 2, 4, 8, help="chunks of K in which A comes for tiles across shards; 0: tiles of one shard's rows",
        say={0: "", 1: "tiles across shards", ...: "tiles across shards, K in {across_shards} chunks"},
    )  # fmt: skip
    tail_splits: int = number(
        *TAIL_SPLITS, help="parts of K of each tile that is left for a last round with idle units",
        say={1: "", ...: "tiles of the last round in {tail_splits} parts of K"},
    )  # fmt: skip

    title: ClassVar[str] = "warp specialization: in each program some warps push, one loads, two groups multiply"
    varies: ClassVar[str] = "it takes whole tiles of a shard, and a small batch has fewer rows"
    constraints: ClassVar = space.WARP_SPECIALIZED

    def latency(self, task: GatherTask, rates: Rates) -> float:
        shards = task.problem.world_size
        spared = self.rounds(task, shards) / self.replace(tail_splits=1).rounds(task, shards)
        computation = spared * tiled_gemm(task, self, rates, task.machine.compute_units)
        pieces = self.across_shards or pieces_of(task.problem, self.transfer_rows)
        return overlapped(computation, links(task.problem, rates), pieces, rates)

    @classmethod
    def across(cls, task: GatherTask) -> Iterator[Self]:
        """Tiles of all shards' rows, if one or two have them all, so that B is read once; K in two chunks, if they are
        even.
        """
        problem = task.problem
        rows, step = round_up(problem.m), SWIZZLED // problem.element_size
        if not WGMMA_ROWS < rows <= (128 if promotes(problem) else 256):
            return
        two = rows > 128
        yield cls(
            block_m=128, block_n=256 if two else 128, block_k=step, group_m=2 if two else 1, sending_warps=2,
            num_stages=4 if two else 5, consumers="cooperative" if two or promotes(problem) else "pingpong",
            transfer_rows=at_most(UNITS, max(16, round_up(problem.shard[0]))),
            across_shards=1 if problem.k % (2 * step) else 2, tail_splits=1,
        )  # fmt: skip

    @classmethod
    def filling(cls, task: GatherTask) -> list[Self]:
        """Tiles of one shard's rows, the soonest first; in units of a quarter of a shard, but of 256 to 512 rows."""
        problem, rows, found = task.problem, task.problem.shard[0], []
        for block_m, block_n, num_stages, consumers, share in TILES:
            tile = cls(
                block_m=block_m, block_n=block_n, block_k=SWIZZLED // problem.element_size, num_stages=num_stages,
                group_m=max(1, min(ROWS_TOGETHER, round_up(rows)) // block_m), consumers=consumers, sending_warps=1,
                transfer_rows=at_most(UNITS, min(512, max(256, rows // 4), max(16, round_up(rows)))), across_shards=0,
                tail_splits=1,
            )  # fmt: skip
            splits = (each for each in TAIL_SPLITS if space.tail_leaves_units(task, each, 0, block_m, block_n))
            ways = [tile.replace(tail_splits=each) for each in splits]
            found.append(min(((way.time(task, share), way) for way in ways), key=itemgetter(0)))
        return [way for _, way in sorted(found, key=itemgetter(0))]

    def time(self, task: GatherTask, share: float) -> float:
        """Microseconds of a tile that takes so much of the widest one's time. Our own shard comes first; the tiles of
        each other begin once it has arrived, and from then on the rounds of all later ones are left.
        """
        problem, exchange = task.problem, untuned.parts(task).exchange
        flops = usual_rates(task.machine).flops * 2 / problem.element_size
        each = share * 2.0 * math.prod(TILES[0][:2]) * problem.k * task.machine.compute_units / flops
        left = [self.rounds(task, shards) * each for shards in range(problem.world_size, 0, -1)]
        arrived = [exchange * before / max(1, problem.world_size - 1) for before in range(problem.world_size)]
        return max(map(sum, zip(arrived, left, strict=True))) + (self.tail_splits - 1) * JOINING

    def rounds(self, task: GatherTask, shards: int) -> float:
        """Rounds of the tiles of so many shards, the last of which takes a part of the time."""
        tiles = shards * self.tiles(task.problem.shard[0], task.problem.n_local)
        return math.ceil(tiles / task.machine.compute_units) - 1 + 1 / self.tail_splits

    @classmethod
    def first(cls, task: GatherTask) -> Iterator[Self]:
        """Few rows across shards; tiles of one shard's rows, the soonest of them walked column by column, too."""
        yield from cls.across(task)
        soonest, *others = cls.filling(task)
        yield soonest
        yield soonest.replace(group_m=16)
        yield from others
