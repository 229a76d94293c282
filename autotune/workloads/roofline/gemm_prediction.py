"""The cost model of a GEMM with communication around it: waves of tiles, bytes from memory, bytes over the links."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from autotune.device_rates import Rates, rates_of
from autotune.kernels.gemm.cost import PULL_SHARE, library_gemm, overlapped, tiled_gemm
from autotune.machine import Machine

if TYPE_CHECKING:  # else whoever tunes would load the kernels
    from autotune.kernels.gemm.tile import GemmKnobs

SATURATING = {"push": 8, "pull_staged": 32}
"""Communicating programs that fill the links."""


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
    return overlapped(computation, communication, _pieces(problem, knobs), rates)


def _computation(problem: Any, knobs: GemmKnobs, machine: Machine, rates: Rates) -> float:
    if not knobs.block_m:
        rows = int(problem.gemm[0])
        return library_gemm(problem, rates, max(1.0, rows / knobs.transfer_rows) if knobs.transfer_rows else 1.0)
    units = machine.compute_units
    if knobs.schedule != "tile" and knobs.head_start == 0:
        units -= knobs.comm_programs // 2
    return tiled_gemm(problem, knobs, machine, rates, units)


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
