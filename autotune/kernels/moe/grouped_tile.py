"""The tile of a grouped GEMM. Read without torch and Triton, too."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.kernels.gemm.tile import Tile
from autotune.search_spaces.joint import flag, number


@dataclass(frozen=True, kw_only=True)
class GroupedTile(Tile):
    swap_ab: bool = flag(help="compute each tile's transpose: for experts with few rows",
                         say="tiles are computed transposed")  # fmt: skip
    programs_per_unit: int = number(1, 2, 4, help="GEMM programs per compute unit, which walk the tiles",
                                    say="{programs_per_unit:program} per compute unit")  # fmt: skip

    def most_tiles(self, rows: int, experts: int, columns: int) -> int:
        """Tiles of ``rows`` rows, however they fall to the experts."""
        blocks = min(rows, (rows + experts * (self.block_m - 1)) // self.block_m)
        return blocks * -(-columns // self.block_n)

    def grouped_programs(self, rows: int, experts: int, columns: int, units: int) -> int:
        """Programs that walk the tiles, on so many compute units."""
        return max(1, min(self.most_tiles(rows, experts, columns), units * self.programs_per_unit))
