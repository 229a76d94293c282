"""The cost model of a GEMM with communication around it: waves of tiles, bytes from memory, bytes over the links."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from autotune.device_rates import Rates, rates_of
from autotune.machine import Machine

if TYPE_CHECKING:  # else whoever tunes would load the kernels
    from autotune.kernels.gemm.tile import GemmKnobs

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

SATURATING = {"push": 8, "pull_staged": 32}
"""Communicating programs that fill the links."""

OVERLAP_LEFT = 0.1
"""Share of the shorter part that remains visible under full overlap."""


def gemm_latency(problem: Any, knobs: GemmKnobs, machine: Machine) -> float | None:
    """Predicted microseconds of a config of a workload with a ``gemm``; None on a machine without known rates."""
    rates = rates_of(machine)
    if rates is None:
        return None
    communication = int(problem.bytes_moved) * _times_read(problem, knobs) / (rates.links * _saturation(knobs))
    computation = _computation(problem, knobs, machine, rates) + _activation(problem, knobs, rates)
    if knobs.mode == "bsp":
        launches = 0.0 if knobs.launch == "graph" else 2 * rates.launch
        return computation + communication + rates.launch + launches
    if knobs.mode == "own_collective":
        return computation + communication + 2 * rates.signal + rates.launch
    pieces = _pieces(problem, knobs)
    longer, shorter = max(computation, communication), min(computation, communication)
    exposed = communication / pieces + OVERLAP_LEFT * shorter
    return longer + exposed + rates.signal * (1 + math.log2(pieces)) + rates.launch


def _computation(problem: Any, knobs: GemmKnobs, machine: Machine, rates: Rates) -> float:
    """The slower of the waves' arithmetic and the bytes from memory; the library's GEMM where no tile is ours."""
    rows, columns, depth = map(int, problem.gemm)
    flops = rates.flops * (2 if problem.element_size == 1 else 1)
    memory = int(problem.bytes_read) / rates.memory
    if not knobs.block_m:
        chunks = max(1.0, rows / knobs.transfer_rows) if knobs.transfer_rows else 1.0
        weights = columns * depth * int(problem.element_size) / rates.memory  # every chunk of rows reads all of B
        return max(2.0 * rows * columns * depth / flops, memory, chunks * weights) + (chunks - 1) * rates.launch
    m, n, splits = knobs.block_m, knobs.block_n, knobs.split_k
    tiles = knobs.tiles(rows, columns) * splits
    units = machine.compute_units
    if knobs.schedule != "tile" and knobs.head_start == 0:
        units -= knobs.comm_programs // 2
    share = min(1.0, 0.4 + 0.6 * m * n / (m + n) / FULL_INTENSITY)
    if not knobs.tma and machine.has_tma:
        share *= POINTER_SHARE
    if knobs.num_stages < 3 and machine.kind == "cuda":
        share *= 0.7
    tile = 2.0 * m * n * depth / splits / (flops / machine.compute_units * share)
    busy = min(1.0, tiles / (ENOUGH_UNITS * units))
    loaded = tiles * (m + n) * depth / splits * int(problem.element_size) / (CACHE_FACTOR * rates.memory)
    # Programs that share a tile meet at its end, one after the other; their fp32 sums are written and read once more.
    joining = (splits - 1) * rates.signal + (splits > 1) * tiles * m * n * 8 / (CACHE_FACTOR * rates.memory)
    return max(math.ceil(tiles / units) * tile, max(memory, loaded) / max(busy, 0.25)) + joining


def _activation(problem: Any, knobs: GemmKnobs, rates: Rates) -> float:
    """The kernel that makes SwiGLU of the library's product: reads it, and writes half as much."""
    if knobs.block_m or not problem.gated:
        return 0.0
    rows, columns, _ = map(int, problem.gemm)
    return 1.5 * rows * columns * int(problem.result_size) / rates.memory + rates.launch


def _times_read(problem: Any, knobs: GemmKnobs) -> int:
    """Times that a peer's data crosses the links: once, unless every column of tiles reads its operand there."""
    reads_there = problem.workload == "all_gather_gemm" and knobs.mode == "pull"
    return math.ceil(problem.gemm[1] / knobs.block_n) if reads_there else 1


def _saturation(knobs: GemmKnobs) -> float:
    """The share of the links that a config can use."""
    programs, enough = knobs.comm_programs, SATURATING.get(knobs.mode)
    share = min(1.0, programs / enough) if enough and programs else 1.0
    if knobs.mode.startswith("pull"):
        share *= PULL_SHARE
    return share * (0.7 if knobs.copy_kib == 2 else 1.0)


def _pieces(problem: Any, knobs: GemmKnobs) -> float:
    """Number of parts in which data arrives; only the first must be waited for."""
    if knobs.transfer_rows:
        rows = int(problem.gemm[0]) / int(problem.world_size)
        return max(1.0, rows / knobs.transfer_rows) * knobs.k_chunks
    return 1.0 if knobs.mode == "bsp" else 4.0
