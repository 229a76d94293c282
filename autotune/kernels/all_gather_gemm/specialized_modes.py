"""All-gather + GEMM by warp specialization, as the mode is declared."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True)
class WarpSpecialized(SpecializedTile, Mode[AllGatherGemm]):
    mode: str = "warp_specialized"
    transfer_rows: int = TRANSFER_ROWS
    sending_warps: int = number(1, 2, help="warps of each program that push", say="{sending_warps:warp} of each push")
    across_shards: int = number(
        0, 1, 2, 4, 8, help="chunks of K in which A comes for tiles across shards; 0: tiles of one shard's rows",
        say={0: "", 1: "tiles across shards", ...: "tiles across shards, K in {across_shards} chunks"},
    )  # fmt: skip

    title: ClassVar[str] = "warp specialization: in each program some warps push, one loads, two groups multiply"
    varies: ClassVar[str] = "it takes whole tiles of a shard, and a small batch has fewer rows"
    constraints: ClassVar = space.WARP_SPECIALIZED

    def latency(self, task: GatherTask, rates: Rates) -> float:
        computation = tiled_gemm(task, self, rates, task.machine.compute_units)
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
            across_shards=1 if problem.k % (2 * step) else 2,
        )  # fmt: skip

    @classmethod
    def filling(cls, task: GatherTask) -> list[Self]:
        """Tiles of one shard's rows, the soonest first; in units of a quarter of a shard, but of 256 to 512 rows."""
        problem, rows, times = task.problem, task.problem.shard[0], {}
        flops = usual_rates(task.machine).flops * 2 / problem.element_size
        widest = 2.0 * 128 * 256 * problem.k * task.machine.compute_units / flops
        for block_m, block_n, num_stages, consumers, share in TILES:
            tile = cls(
                block_m=block_m, block_n=block_n, block_k=SWIZZLED // problem.element_size, num_stages=num_stages,
                group_m=max(1, min(ROWS_TOGETHER, round_up(rows)) // block_m), consumers=consumers, sending_warps=1,
                across_shards=0, transfer_rows=at_most(UNITS, min(512, max(256, rows // 4), max(16, round_up(rows)))),
            )  # fmt: skip
            times[tile] = tile.time(task, share * widest)
        return sorted(times, key=times.__getitem__)

    def time(self, task: GatherTask, each: float) -> float:
        """Microseconds of it all if a round takes ``each``. Our own shard comes first; the tiles of another begin once
        it has arrived, and from then on the rounds of all later ones are left.
        """
        problem, exchange = task.problem, untuned.parts(task).exchange
        own, shards = self.tiles(problem.shard[0], problem.n_local), problem.world_size
        left = [math.ceil((shards - before) * own / task.machine.compute_units) * each for before in range(shards)]
        return max(exchange * before / max(1, shards - 1) + rounds for before, rounds in enumerate(left))

    @classmethod
    def first(cls, task: GatherTask) -> Iterator[Self]:
        """Few rows across shards; tiles of one shard's rows, the soonest of them walked column by column, too."""
        yield from cls.across(task)
        soonest, *others = cls.filling(task)
        yield soonest
        yield soonest.replace(group_m=16)
        yield from others
