"""Arithmetic for untuned configs of GEMMs with an exchange, on two ranks of sm_90 joined by NVLink.

It compares the time of a rank's GEMM with that of its exchange, and counts programs. Of 32 problems of models on 2 H100
(bf16, B as nk; 2026-11-25) its configs take 1.02 times as long as the fastest ones that searches found, geometric mean,
and 1.10 at most; those that follow from M alone take 1.12 and 1.44.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.device_rates import RATES
from autotune.kernels.gemm.space import SQUARE, WIDE
from autotune.sizes import round_up
from autotune.task import Task

ARCH = "sm_90"

OF_16_BITS = 2
"""Bytes of an element; of other types nothing was measured."""

FILLED = 0.9
"""Share of the compute units that has a program where a tile fills the GPU."""

SMALL_SQUARE = {**SQUARE, "num_warps": 4}
FILLING = (
    WIDE,
    SMALL_SQUARE,
    {"block_m": 64, "block_n": 128, "block_k": 128, "num_warps": 4, "num_stages": 4},
    {"block_m": 64, "block_n": 64, "block_k": 128, "num_warps": 4, "num_stages": 4},
    {"block_m": 64, "block_n": 32, "block_k": 256, "num_warps": 4, "num_stages": 4},
)
"""Tiles from the largest on."""


@dataclass(frozen=True)
class Parts:
    """Microseconds of a problem's parts, each alone."""

    gemm: float
    exchange: float


def parts(task: Task[Any]) -> Parts | None:
    """The times of both parts by the rates of sm_90; None where the rules that go by them have not been measured: other
    machines and numbers of ranks, 8 or 32 bits, parts that travel as fp8, SwiGLU.
    """
    problem = task.problem
    here = task.machine.arch == ARCH and task.machine.interconnect == "nvlink" and problem.world_size == 2
    if not here or problem.element_size != OF_16_BITS or problem.gated or problem.wire != "auto":
        return None
    rates, (_, columns, depth) = RATES[ARCH], problem.gemm
    reading_b = columns * depth * problem.element_size / rates.memory
    return Parts(max(problem.flops / rates.flops, reading_b), problem.bytes_moved / rates.links)


def programs_of(tile: Mapping[str, int], rows: int, columns: int) -> int:
    return -(-rows // tile["block_m"]) * -(-columns // tile["block_n"])


def filling_tile(task: Task[Any], rows: int) -> dict[str, int]:
    """The largest tile whose programs fill the GPU, else the smallest. ``rows``: those that one owner has.

    A few wide tiles that all run at once overlap little: those of a peer's rows wait, then all compute together.
    """
    m, columns, _ = task.problem.gemm
    enough = FILLED * task.machine.compute_units
    tile = next((each for each in FILLING if programs_of(each, m, columns) >= enough), FILLING[-1])
    return cut_to_size({**tile, "block_m": min(tile["block_m"], max(16, round_up(rows)))}, task.problem)


def one_round_tile(task: Task[Any], rows: int) -> dict[str, int] | None:
    """The narrowest tile of an owner's rows whose programs all run at once; None if there is none."""
    problem = task.problem
    _, columns, _ = problem.gemm
    block_m = min(128, max(16, round_up(rows)))
    for block_n in (64, 128, 256):
        if problem.world_size * programs_of({"block_m": block_m, "block_n": block_n}, rows, columns) <= (
            task.machine.compute_units
        ):
            return cut_to_size({**_pipeline(block_m, block_n), "block_m": block_m, "block_n": block_n}, problem)
    return None


def cut_to_size(tile: dict[str, int], problem: Any) -> dict[str, int]:
    """A tile no wider and no deeper than the problem, but for rounding up to a power of two."""
    _, columns, depth = problem.gemm
    block_n, block_k = min(tile["block_n"], max(32, round_up(columns))), min(tile["block_k"], max(32, round_up(depth)))
    return {**tile, "block_n": block_n, "block_k": block_k}


def _pipeline(block_m: int, block_n: int) -> dict[str, int]:
    """Steps as deep and as many as fit into shared memory."""
    if block_m < 64:
        return {"block_k": 128 if block_n == 64 else 64, "group_m": 4, "num_warps": 4, "num_stages": 6}
    if block_m * block_n < 128 * 128:
        return {"block_k": 128, "group_m": 4, "num_warps": 4, "num_stages": 4}
    return {**SQUARE, "num_stages": 5} if block_n == 128 else WIDE
