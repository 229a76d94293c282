"""Cost models of a GEMM with communication around it: waves of tiles, bytes from memory, bytes over the links."""

from __future__ import annotations

import math
from typing import Any

from autotune.device_rates import Rates
from autotune.kernels.gemm.specialized import SpecializedTile
from autotune.kernels.gemm.tile import GemmTile
from autotune.task import Task

FULL_INTENSITY = 128 * 256 / (128 + 256)
"""Operations per loaded element of the tile that reaches the full rate."""

POINTER_SHARE = 0.85
"""Share of the full rate that pointer loads reach on devices with TMA."""

CACHE_FACTOR = 2.2
"""Bytes from the L2 per byte from HBM in the same time."""

ENOUGH_UNITS = 0.5
"""Share of the compute units whose loads saturate the memory."""

PULL_SHARE = 0.7
"""Share of the links' rate that loads from peers reach: they wait for answers, stores do not."""

OVERLAP_LEFT = 0.1
"""Share of the shorter part that remains visible under full overlap."""


def full_rate(problem: Any, rates: Rates) -> float:
    """Operations in a microsecond, of fp8 twice as many."""
    return rates.flops * (2 if problem.element_size == 1 else 1)


def library_gemm(problem: Any, rates: Rates, chunks: float = 1.0) -> float:
    """The library's GEMM, in ``chunks`` of A's rows, each of which reads all of B."""
    rows, columns, depth = map(int, problem.gemm)
    weights = columns * depth * int(problem.element_size) / rates.memory
    memory = max(int(problem.bytes_read) / rates.memory, chunks * weights)
    return max(2.0 * rows * columns * depth / full_rate(problem, rates), memory) + (chunks - 1) * rates.launch


def tiled_gemm(task: Task[Any], tile: GemmTile | SpecializedTile, rates: Rates, units: int) -> float:
    """Our GEMM on so many compute units: the slower of the waves' arithmetic and the bytes from memory."""
    problem, machine = task.problem, task.machine
    rows, columns, depth = map(int, problem.gemm)
    memory = int(problem.bytes_read) / rates.memory
    m, n, splits = tile.block_m, tile.block_n, tile.split_k
    tiles = tile.tiles(rows, columns) * splits
    share = min(1.0, 0.4 + 0.6 * m * n / (m + n) / FULL_INTENSITY)
    if not tile.tma and machine.has_tma:
        share *= POINTER_SHARE
    if tile.num_stages < 3 and machine.kind == "cuda":
        share *= 0.7
    each = 2.0 * m * n * depth / splits / (full_rate(problem, rates) / machine.compute_units * share)
    busy = min(1.0, tiles / (ENOUGH_UNITS * units))
    loaded = tiles * (m + n) * depth / splits * int(problem.element_size) / (CACHE_FACTOR * rates.memory)
    # Programs that share a tile meet at its end, one after the other; their fp32 sums are written and read once more.
    joining = (splits - 1) * rates.signal + (splits > 1) * tiles * m * n * 8 / (CACHE_FACTOR * rates.memory)
    return max(math.ceil(tiles / units) * each, max(memory, loaded) / max(busy, 0.25)) + joining


def links(problem: Any, rates: Rates, share: float = 1.0) -> float:
    """What a rank receives, at this share of the links' rate."""
    return int(problem.bytes_moved) / (rates.links * share)


def overlapped(computation: float, communication: float, pieces: float, rates: Rates, first: float = 0.0) -> float:
    """Both at once, where data arrives in so many pieces, of which only the first, or that share, is awaited."""
    longer, shorter = max(computation, communication), min(computation, communication)
    exposed = communication * max(1 / pieces, first) + OVERLAP_LEFT * shorter
    return longer + exposed + rates.signal * (1 + math.log2(pieces)) + rates.launch


def awaited(problem: Any, programs: int, units: int) -> float:
    """Share of an all-gather that the first round's tiles wait for: own rows come first and need not; all of it where
    there is no other round.
    """
    own, first = programs / int(problem.world_size), min(programs, units)
    return max(0.0, first - own) / (programs - own) if programs > own else 0.0
