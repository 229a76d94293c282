"""The problem: C = all_reduce(A @ B) (+ bias), A and B sharded along K."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.kernels.gemm.problem import RESIDUAL, WIRE, WIRES, SummedProblem
from autotune.problem import choice, flag, invariant, size

SLOTS = 2
"""Inboxes used in turn, see ``device``."""

MOST_INBOX_BYTES = 2 << 30
"""Limit on a mode's inbox: beyond it, other modes move far less and win in any case."""


@dataclass(frozen=True, kw_only=True)
class GemmAllReduce(SummedProblem):
    """C [m, n] = sum over ranks of A [m, k / world_size] @ B [k / world_size, n] (+ bias) (+ residual), on every rank.

    The second half of a row-parallel layer. ``b_order`` kn: B is stored [k_local, n] row by row; nk: as the weight of a
    linear layer, [n, k_local]. All ranks hold the same bias [n] and residual [m, n]; both are added to the sum in
    fp32, which is rounded once. ``deterministic``: the same inputs give the same bits, on
    every rank and in every call.
    """

    workload = "gemm_all_reduce"
    computes = "C = all_reduce(A @ B)"
    free = ("m",)
    one_row = "m"

    m: int = size("rows of A and of C")
    n: int = size("columns of B and of C")
    k: int = size("columns of the whole A, rows of the whole B; each rank holds k / world-size")
    deterministic: bool = flag("demand the same bits on every rank, in every call")
    residual: bool = flag(RESIDUAL)
    wire: str = choice(WIRE, WIRES, "auto")
    invariant: bool = invariant()

    def check(self) -> None:
        """Raise InvalidProblem if the ranks cannot share K evenly, or operands do not go together."""
        self.check_sharded("k")
        self.check_operands(self.n, self.k_local)

    @property
    def bytes_moved(self) -> int:
        """Bytes that one rank receives at least: its share of every peer's part, then every peer's share of the sum; or
        every peer's part, where parts are that much smaller than the sum.
        """
        for_all = min(self.wire_size + self.result_size, self.world_size * self.wire_size)
        return (self.world_size - 1) * self.m * self.n * for_all // self.world_size

    def inbox_bytes(self, shots: str, tiles: int, elements: int, protocol: str) -> int:
        """Bytes of the inboxes that ``one_shot`` or ``two_shot`` needs on each rank, for ``tiles`` of ``elements``."""
        held = sum(in_inboxes(shots, tiles, self.world_size))
        return held * elements * self.result_size * (2 if protocol == "ll" else 1)


def in_inboxes(shots: str, tiles: int, world_size: int) -> tuple[int, int]:
    """Tiles in the inbox of parts, and in that of results."""
    if shots == "two_shot":  # parts of the tiles that we own, and every tile's result
        return SLOTS * world_size * math.ceil(tiles / world_size), SLOTS * tiles
    return SLOTS * world_size * tiles, 0
