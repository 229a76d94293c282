"""The problem: C = all_gather(A) @ B (+ bias), then maybe SwiGLU; A sharded by rows or along K, B by columns."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.dtypes import SCALE_BLOCK
from autotune.errors import InvalidProblem
from autotune.kernels.gemm.problem import GATE_UP, GatedColumns, GemmProblem, blocks
from autotune.problem import choice, flag, invariant, size

LAYOUTS = ("rows", "k")

EPILOGUES = ("none", "swiglu", "geglu", "geglu_tanh")
"""Activations that make one column of C of two of the product: activation(gate) * up; ``geglu`` is exact, the other
by tanh.
"""

MOST_WORD_BYTES = 8 << 20
"""The largest gathered A that travels as sentinel words, which take its size twice beside the inbox."""

MOST_TILES_BY_SHARD = 4 / 3
"""More tiles that are worth their having one owner each. N=28672 K=4096 on 2 H100, 2026-11-27: a push takes 364 µs at
m=2046 by one owner, 514 by two. By a third more tiles it takes 120 and 125 at m=320, but 107 and 86 at m=192; the
direct pull by two owners takes 1.6 times as long at m=258 as at 512, where every tile has one.
"""


@dataclass(frozen=True, kw_only=True)
class AllGatherGemm(GatedColumns, GemmProblem):
    """C [m, n / world_size] = all_gather(A) [m, k] @ B [k, n / world_size] (+ bias [n / world_size]) on every rank.

    ``layout`` rows: each rank holds A [m / world_size, k] (sequence parallel). k: A [m, k / world_size].
    ``b_order`` kn: B is stored [k, n_local] row by row; nk: as the weight of a linear layer, [n_local, k].
    Scales per row, and per block in layout rows, lie beside A's shard and travel with its rows; those per row in layout
    k are the same on every rank.
    With an ``epilogue`` B holds gate and up, and C [m, n / world_size / 2] is activation(gate) * up of the product and
    its bias, in fp32. ``quantised``: that is rounded to fp8, each row and 128 columns with an fp32 scale of their own.
    """

    workload = "all_gather_gemm"
    computes = "C = all_gather(A) @ B"
    free = ("m",)
    one_row = "m"

    m: int = size("rows of the gathered A and of C")
    n: int = size("columns of the whole B; each rank holds n / world-size")
    k: int = size("columns of the gathered A, rows of B")
    layout: str = choice("sharding of A: by rows, or along K", LAYOUTS, "rows")
    in_place: bool = flag("A's shard lies in the tensor of all_gather_shard, so peers read it without a copy")
    gathered: bool = flag("also return the gathered A, as a tensor of its own")
    epilogue: str = choice(
        "activation after the GEMM: SiLU or GELU (exact, or by tanh) of the gate, times up; C is half as wide as B",
        EPILOGUES, "none",
    )  # fmt: skip
    gate_up: str = choice(
        "gate and up in each rank's B: halves is [gate, up]; interleaved is gate, up, gate, up, …", GATE_UP, "halves",
    )  # fmt: skip

    quantised: bool = flag("C as fp8, the A of the next GEMM: a scale per row and 128 columns; needs an epilogue")
    invariant: bool = invariant()

    def check(self) -> None:
        """Raise InvalidProblem if the sharding does not divide a dimension, or operands do not go together."""
        self.check_sharded("n", "m" if self.layout == "rows" else "k", note=f" (layout {self.layout})")
        self.check_operands(self.n_local, self.shard[1])
        if self.gated and self.n_local % 2:
            raise InvalidProblem(
                f"n={self.n} on {self.world_size} ranks: with epilogue={self.epilogue} each rank's B has as many "
                f"columns of the gate as of up, an even number; use {self.n + self.world_size}"
            )
        self.check_gate()
        if self.quantised:
            self._check_quantised()

    def _check_quantised(self) -> None:
        if not self.gated or self.gathered:
            raise InvalidProblem(
                f"quantised with epilogue={self.epilogue} gathered={self.gathered}: a quantised C needs an epilogue, "
                "such as swiglu, and no gathered A beside it"
            )
        if self.columns % SCALE_BLOCK:
            unit = 2 * SCALE_BLOCK * self.world_size
            nearest = " or ".join(str(count * unit) for count in (self.n // unit, self.n // unit + 1) if count)
            raise InvalidProblem(
                f"n={self.n}: quantised, C has {self.columns} columns on each rank and a scale for each "
                f"{SCALE_BLOCK} of them; use {nearest}"
            )

    @property
    def rows_layout(self) -> bool:
        return self.layout == "rows"

    @property
    def n_local(self) -> int:
        return self.n // self.world_size

    @property
    def quantised_dtype(self) -> str:
        """The type of a quantised C: that of the operands, where they are fp8."""
        return "fp8_fnuz" if self.dtype == "fp8_fnuz" else "fp8"

    @property
    def columns(self) -> int:
        return self.n_local // 2 if self.gated else self.n_local

    @property
    def shard(self) -> tuple[int, int]:
        if self.rows_layout:
            return self.m // self.world_size, self.k
        return self.m, self.k // self.world_size

    def tiled_by_shard(self, block_m: int, split_k: int = 1) -> bool:
        """True if tiles begin anew at every shard: each has one owner, and a rank's own rows need no wait. Not where
        that would make many more tiles, nor where programs share a tile.
        """
        by_shard = self.world_size * math.ceil(self.shard[0] / block_m)
        few = by_shard <= MOST_TILES_BY_SHARD * math.ceil(self.m / block_m)
        return self.rows_layout and split_k == 1 and few

    @property
    def gathers_scales(self) -> bool:
        """True if a rank holds scales of A that its peers need."""
        return self.scales == "block" or (self.scales == "row" and self.rows_layout)

    @property
    def scale_columns(self) -> int:
        """Scales of a row of the gathered A."""
        return blocks(self.k) if self.scales == "block" else 1

    @property
    def gemm(self) -> tuple[int, int, int]:
        """Rows, columns and depth of one rank's GEMM."""
        return self.m, self.n_local, self.k

    @property
    def bytes_moved(self) -> int:
        """Bytes that one rank receives from its peers."""
        row = self.k * self.element_size + (4 * self.scale_columns if self.gathers_scales else 0)
        return self.m * row * (self.world_size - 1) // self.world_size

    @property
    def bytes_read(self) -> int:
        """Lower bound on the bytes that one rank reads from its memory: the gathered A and its B."""
        return (self.m * self.k + self.k * self.n_local) * self.element_size
