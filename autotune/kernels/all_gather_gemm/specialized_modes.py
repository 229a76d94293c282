"""All-gather + GEMM by warp specialization, as the mode is declared."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import ClassVar, Self

from autotune.device_rates import Rates
from autotune.dtypes import WGMMA_ROWS
from autotune.kernels import untuned
from autotune.kernels.all_gather_gemm import space
from autotune.kernels.all_gather_gemm.library_modes import SHORTEST_EXCHANGE, TRANSFER_ROWS, UNITS, at_most, pieces_of
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.all_gather_gemm.space import GatherTask
from autotune.kernels.gemm.cost import links, overlapped, tiled_gemm
from autotune.kernels.gemm.specialized import SWIZZLED, SpecializedTile, promotes
from autotune.kernels.launching.mode import Mode
from autotune.search_spaces.joint import flag, number
from autotune.sizes import round_up

TILES = (
    (128, 256, 4, "cooperative", 1.0),
    (128, 128, 6, "cooperative", 0.53),
    (64, 256, 4, "pingpong", 0.56),
    (64, 128, 8, "pingpong", 0.3),
)
"""Rows, columns, stages and consumers of tiles, and the time of one in that of the widest: 2048 x 14336 x 8192 took
720, 747, 778 and 834 µs; 866 x 4608 x 4096 in two, three, two and four rounds 86, 69, 55 and 62 (one H200, a rank that
is its own peer, 2026-11-29).
"""

PINGPONG = 5.0
"""Microseconds that pingpong adds, whose first and last products have nobody beside them: 866 x 2304 x 4096 took 35 in
two rounds, 866 x 4608 x 4096 62 in four, 1024 x 7680 x 5120 138 in eight of 17 (likewise).
"""

ROWS_SPECIALIZED = 256
"""A shard's rows from which on it is used untuned: with 2 x 256 rows it took 0.91 times as long as any other mode, with
2 x 128 1.25 times (N=8192, 4608; 2 H100, 2026-11-27).
"""

SHORT_EXCHANGE = 0.08
"""Share of the GEMM's time up to which an exchange is not worth our GEMM, which may take longer than the library's: at
0.04 it took 1.06 times as long as our collective and the library's GEMM, at 0.056 1.02 times, at 0.083 1.01 times (2
H100, 2026-11-27). At 0.06 2048 x 35840 x 5120 took 0.88 times as long, and 1024 x 28672 x 8192, at 0.08, 0.95 times,
where rounds are filled (2 H200, 2026-11-29).
"""

SLOWER = 0.15
"""Share by which our tiles may take longer than the library's GEMM where copies beside it compete, by shards of more
than 512 rows: at 0.01 to 0.13 they took 0.86 to 1.02 times as long, at 0.19 to 0.37 1.04 to 1.08 times, at 0.54 0.99
(13 sizes, 2 H200, 2026-11-29).
"""

ROWS_TOGETHER = 1024
"""Rows walked column by column."""

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
    split_tail: bool = flag(
        help="split K of the tiles that full rounds leave over, if units would idle", say="split K in the last round"
    )

    title: ClassVar[str] = "warp specialization: in each program some warps push, one loads, two groups multiply"
    varies: ClassVar[str] = "it takes whole tiles of a shard, and a small batch has fewer rows"
    constraints: ClassVar = space.WARP_SPECIALIZED

    def latency(self, task: GatherTask, rates: Rates) -> float:
        spared = self.rounds(task, 0) / self.replace(split_tail=False).rounds(task, 0)
        computation = spared * tiled_gemm(task, self, rates, task.machine.compute_units)
        pieces = self.across_shards or pieces_of(task.problem, self.transfer_rows)
        return overlapped(computation, links(task.problem, rates), pieces, rates)

    @classmethod
    def across(cls, task: GatherTask) -> Iterator[Self]:
        """A tile across shards, if one or two have all rows."""
        problem = task.problem
        rows, step = round_up(problem.m), SWIZZLED // problem.element_size
        if not WGMMA_ROWS < rows <= (128 if promotes(problem) else 256):
            return
        two = rows > 128
        tile = cls(
            block_m=128, block_n=256 if two else 128, block_k=step, group_m=1, sending_warps=2,
            num_stages=4 if two else 5, consumers="cooperative" if two or promotes(problem) else "pingpong",
            transfer_rows=UNITS[0], across_shards=0, split_tail=False,
        )  # fmt: skip
        yield tile.across_all(task)

    @classmethod
    def filling(cls, task: GatherTask) -> list[Self]:
        """Each tile, of one shard's rows or of all of them, the soonest first."""
        return [way for _, way in cls._timed(task)]

    @classmethod
    def pays(cls, task: GatherTask) -> bool:
        """True if it is sooner than the library's GEMM: up to 512 rows a shard than our all-gather and then that, with
        more than copies beside it. See ``SHORT_EXCHANGE`` and ``SLOWER``.
        """
        rows, parts = task.problem.shard[0], untuned.parts(task)
        exchange = parts.exchange / parts.gemm
        if task.problem.scaled:
            return exchange >= SHORT_EXCHANGE
        (soonest, _), *_ = cls._timed(task)
        if rows <= untuned.ROWS_OF_CHUNK:
            return exchange >= SHORT_EXCHANGE or soonest <= parts.gemm + parts.exchange
        least = SHORTEST_EXCHANGE if rows <= 2 * untuned.ROWS_OF_CHUNK else SHORT_EXCHANGE
        return exchange >= least and soonest <= (1 + SLOWER) * parts.gemm

    @classmethod
    def saves_rounds(cls, task: GatherTask) -> bool:
        """True if the soonest tile takes less than 0.85 of the rounds of the widest, which ``push`` has, too: with
        SwiGLU 600 x 35840 x 5120 took 196 µs for its 231, 512 x 22528 x 4096 88 for 98, and 1024 x 28672 x 8192, at
        0.88, as long (2 H200, 2026-11-29).
        """
        problem = task.problem
        tiles = problem.world_size * untuned.programs_of(untuned.WIDE, problem.shard[0], problem.n_local)
        (soonest, _), *_ = cls._timed(task)
        return soonest < 0.85 * math.ceil(tiles / task.machine.compute_units) * untuned.widest_round(task)

    @classmethod
    def _timed(cls, task: GatherTask) -> list[tuple[float, Self]]:
        """Microseconds of each, which sends by a quarter of a shard, but by 256 to 512 rows. Across shards not by tiles
        of 64 rows: 700 x 9216 x 7168 took 113 µs, not 82 (2 H200, 2026-11-29).
        """
        problem, rows, found = task.problem, task.problem.shard[0], []
        for block_m, block_n, num_stages, consumers, share in TILES:
            tile = cls(
                block_m=block_m, block_n=block_n, block_k=SWIZZLED // problem.element_size, num_stages=num_stages,
                group_m=max(1, min(ROWS_TOGETHER, round_up(rows)) // block_m), consumers=consumers, sending_warps=1,
                transfer_rows=at_most(UNITS, min(512, max(256, rows // 4), max(16, round_up(rows)))), across_shards=0,
                split_tail=False,
            )  # fmt: skip
            ways = [tile, tile.replace(split_tail=True)] if rows >= block_m else []
            if problem.m <= space.MOST_ROWS_ACROSS and block_m > WGMMA_ROWS:
                ways.append(tile.across_all(task))
            found += sorted(((way.time(task, share), way) for way in ways), key=itemgetter(0))[:1]
        return sorted(found, key=itemgetter(0))

    def across_all(self, task: GatherTask) -> Self:
        """The tile across shards, for which B is read once; K in two chunks, if they are even."""
        return self.replace(
            transfer_rows=at_most(UNITS, max(16, round_up(task.problem.shard[0]))), sending_warps=2, group_m=16,
            across_shards=1 if task.problem.k % (2 * self.block_k) else 2,
        )  # fmt: skip

    def time(self, task: GatherTask, share: float) -> float:
        """Microseconds of a tile that takes so much of the widest one's time. Our own shard comes first; the tiles of
        each other begin once it has arrived. Tiles across shards begin with a chunk of K from all of them.
        """
        problem, exchange, each = task.problem, untuned.parts(task).exchange, share * untuned.widest_round(task)
        fixed = PINGPONG * (self.consumers == "pingpong") + JOINING * (space.tail_parts(task, self) - 1)
        if self.across_shards:
            rounds = math.ceil(self.tiles(problem.m, problem.n_local) / task.machine.compute_units)
            return fixed + exchange / self.across_shards + rounds * each
        arrivals = [exchange * shard / max(1, problem.world_size - 1) for shard in range(problem.world_size)]
        return fixed + max(arrival + self.rounds(task, shard) * each for shard, arrival in enumerate(arrivals))

    def rounds(self, task: GatherTask, shard: int) -> float:
        """Rounds of tiles of one shard's rows from the first of a shard on; of a last one that is split, a part."""
        problem, units = task.problem, task.machine.compute_units
        own, parts = self.tiles(problem.shard[0], problem.n_local), space.tail_parts(task, self)
        count, begin = problem.world_size * own, shard * own
        left = space.tail_of(task, self.block_m, self.block_n) if parts > 1 else 0
        split = begin % units < left * parts
        return math.ceil(max(0, count - left - begin) / units) + split / parts

    @classmethod
    def first(cls, task: GatherTask) -> Iterator[Self]:
        """Few rows across shards; each tile, the soonest of them walked column by column, too."""
        yield from cls.across(task)
        filling = cls.filling(task)
        yield from filling[:1]
        yield from (soonest.replace(group_m=16) for soonest in filling[:1])
        yield from filling[1:]
