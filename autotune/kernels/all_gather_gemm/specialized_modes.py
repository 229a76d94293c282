"""All-gather + GEMM by warp specialization, as the mode is declared."""

from __future__ import annotations

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

NARROW_SHARE = 0.55
"""Time of a warp-specialized tile of 128 columns in that of one of 256. In one round of 120 wide tiles 1024 x 7680 x
5120 took 78.9 µs, in two of 240 narrow ones 62.0; 1558 x 5120 x 3072 77.7 in two and 57 in three (2 H200, 2026-11-27).
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
    def filling(cls, task: GatherTask) -> Self:
        """With that of two tiles whose rounds end first, beginning with our own rows; units of a quarter of a shard,
        but of 256 to 512 rows. An exchange goes on during all rounds but one.
        """
        problem, units, exchange = task.problem, task.machine.compute_units, untuned.parts(task).exchange
        rows = problem.shard[0]
        wide = cls(
            block_m=128, block_n=256, block_k=SWIZZLED // problem.element_size, num_stages=4, consumers="cooperative",
            group_m=min(8, max(1, round_up(rows // 128))), sending_warps=1, across_shards=0,
            transfer_rows=at_most(UNITS, min(512, max(256, rows // 4), max(16, round_up(rows)))),
        )  # fmt: skip
        narrow = wide.replace(block_n=128, num_stages=5)
        if promotes(problem):
            return narrow.replace(num_stages=6)
        each = 2.0 * wide.block_m * wide.block_n * problem.k * units / usual_rates(task.machine).flops

        def time(tile: Self) -> float:
            rounds = -(-problem.world_size * tile.tiles(rows, problem.n_local) // units)
            return rounds * each * (1.0 if tile is wide else NARROW_SHARE) + exchange / rounds

        return min(wide, narrow, key=time)

    @classmethod
    def first(cls, task: GatherTask) -> Iterator[Self]:
        """Few rows across shards; the largest tiles of either kind, walked column by column, too."""
        yield from cls.across(task)
        filling = cls.filling(task)
        yield filling
        yield filling.replace(group_m=16)
        pingpong = filling.replace(block_n=128, num_stages=5, consumers="pingpong")
        yield pingpong
        yield pingpong.replace(block_m=64)
