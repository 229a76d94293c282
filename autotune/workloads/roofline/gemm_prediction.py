"""The cost model of a GEMM with communication around it: waves of tiles, bytes from memory, bytes over the links."""

from __future__ import annotations

import math
from typing import Any

from autotune.config import Config
from autotune.machine import Machine
from autotune.workloads.roofline.device_rates import Rates, rates_of

FULL_INTENSITY = 128 * 256 / (128 + 256)
"""Operations per loaded element of the tile that reaches the full rate."""

POINTER_SHARE = 0.85
"""Of the full rate that loads by pointer reach where there is TMA."""

CACHE_FACTOR = 2.2
"""Bytes from the L2 for each byte from HBM in the same time."""

ENOUGH_UNITS = 0.5
"""Share of the compute units that loads as fast as the memory delivers."""

PULL_SHARE = 0.7
"""Of the links' rate that loads from peers reach: they wait for their answers, stores do not."""

SATURATING = {"push": 8, "pull_staged": 32}
"""Communicating programs that fill the links."""

OVERLAP_LEFT = 0.1
"""Share of the shorter part that shows beside the longer one even when all overlaps."""


def gemm_latency(problem: Any, config: Config, machine: Machine) -> float | None:
    """Predicted microseconds of a config of a workload with a ``gemm``; None on a machine without known rates."""
    rates = rates_of(machine)
    if rates is None:
        return None
    communication = int(problem.bytes_moved) * _times_read(problem, config) / (rates.links * _saturation(config))
    computation = _computation(problem, config, machine, rates)
    if config["mode"] == "bsp":
        launches = 0.0 if config.get("launch") == "graph" else 2 * rates.launch
        return computation + communication + rates.launch + launches
    if config["mode"] == "own_collective":
        return computation + communication + 2 * rates.signal + rates.launch
    pieces = _pieces(problem, config)
    longer, shorter = max(computation, communication), min(computation, communication)
    exposed = communication / pieces + OVERLAP_LEFT * shorter
    return longer + exposed + rates.signal * (1 + math.log2(pieces)) + rates.launch


def _computation(problem: Any, config: Config, machine: Machine, rates: Rates) -> float:
    """The slower of the waves' arithmetic and the bytes from memory; the library's GEMM where no tile is ours."""
    rows, columns, depth = map(int, problem.gemm)
    memory = int(problem.bytes_read) / rates.memory
    if "block_m" not in config:
        chunks = max(1.0, rows / config.integer("transfer_rows")) if "transfer_rows" in config else 1.0
        weights = columns * depth * int(problem.element_size) / rates.memory  # every chunk of rows reads all of B
        return max(2.0 * rows * columns * depth / rates.flops, memory, chunks * weights) + (chunks - 1) * rates.launch
    m, n = config.integer("block_m"), config.integer("block_n")
    splits = config.integer("split_k") if "split_k" in config else 1
    tiles = math.ceil(rows / m) * math.ceil(columns / n) * splits
    units = machine.compute_units
    if config.get("schedule") != "tile" and config.get("head_start") == 0 and "comm_programs" in config:
        units -= config.integer("comm_programs") // 2
    share = min(1.0, 0.4 + 0.6 * m * n / (m + n) / FULL_INTENSITY)
    if config.get("loads") == "pointer" and machine.has_tma:
        share *= POINTER_SHARE
    if config.integer("num_stages") < 3 and machine.kind == "cuda":
        share *= 0.7
    tile = 2.0 * m * n * depth / splits / (rates.flops / machine.compute_units * share)
    busy = min(1.0, tiles / (ENOUGH_UNITS * units))
    loaded = tiles * (m + n) * depth / splits * int(problem.element_size) / (CACHE_FACTOR * rates.memory)
    # Programs that share a tile meet at its end, one after the other; their fp32 sums are written and read once more.
    joining = (splits - 1) * rates.signal + (splits > 1) * tiles * m * n * 8 / (CACHE_FACTOR * rates.memory)
    return max(math.ceil(tiles / units) * tile, max(memory, loaded) / max(busy, 0.25)) + joining


def _times_read(problem: Any, config: Config) -> int:
    """How often what is a peer's crosses the links: once, unless every column of tiles reads its operand there."""
    reads_there = problem.workload == "all_gather_gemm" and config["mode"] == "pull"
    return math.ceil(problem.gemm[1] / config.integer("block_n")) if reads_there else 1


def _saturation(config: Config) -> float:
    """The share of the links that a config can use."""
    programs = config.integer("comm_programs") if "comm_programs" in config else 0
    enough = SATURATING.get(str(config["mode"]))
    share = min(1.0, programs / enough) if enough and programs else 1.0
    if str(config["mode"]).startswith("pull"):
        share *= PULL_SHARE
    return share * (0.7 if config.get("copy_kib") == 2 else 1.0)


def _pieces(problem: Any, config: Config) -> float:
    """In how many parts what is sent arrives: only the first must be waited for."""
    if "transfer_rows" in config:
        chunks = config.integer("k_chunks") if "k_chunks" in config else 1
        return max(1.0, int(problem.gemm[0]) / int(problem.world_size) / config.integer("transfer_rows")) * chunks
    return 1.0 if config["mode"] == "bsp" else 4.0
