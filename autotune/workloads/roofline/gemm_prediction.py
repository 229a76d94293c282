"""The cost model of a GEMM with communication around it: waves of tiles, bytes from memory, bytes over the links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.device_rates import Rates, rates_of
from autotune.kernels.gemm.cost import library_gemm, links, overlapped, tiled_gemm
from autotune.machine import Machine

if TYPE_CHECKING:  # else whoever tunes would load the kernels
    from autotune.kernels.gemm.tile import GemmKnobs


def gemm_latency(problem: Any, knobs: GemmKnobs, machine: Machine) -> float | None:
    """Predicted microseconds of a config of a workload with a ``gemm``; None on a machine without known rates."""
    rates = rates_of(machine)
    if rates is None:
        return None
    communication, computation = links(problem, rates), _computation(problem, knobs, machine, rates)
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
    return tiled_gemm(problem, knobs, machine, rates, machine.compute_units)


def _pieces(problem: Any, knobs: GemmKnobs) -> float:
    """Number of parts in which data arrives; only the first must be waited for."""
    if knobs.transfer_rows:
        rows = int(problem.gemm[0]) / int(problem.world_size)
        return max(1.0, rows / knobs.transfer_rows)
    return 1.0 if knobs.mode == "bsp" else 4.0
