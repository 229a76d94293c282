"""Occupancy: how many programs of a kernel fit on a compute unit, and whether all that wait for each other are
resident.

The rules are those of NVIDIA's occupancy calculator and of LLVM's AMDGPU back end: registers are given out by the warp
(wave), in granules, from a quarter of the unit's file each; shared memory (LDS) by the program.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.kernels.launching.plan import Compiled
from autotune.machine import Machine

QUARTERS = 4
"""Sub-partitions of a multiprocessor, SIMD units of a compute unit."""


@dataclass(frozen=True)
class ComputeUnit:
    """Resources that the programs on one compute unit share. Bytes; registers of 32 bits, all lanes counted."""

    shared_memory: int
    taken: int
    """Bytes of shared memory that the system takes for each program."""
    granule: int
    """Bytes in which shared memory is given out."""
    registers: int
    register_granule: int
    """Registers, all lanes of a warp together, in which they are given out."""
    warps: int
    programs: int


COMPUTE_UNITS: Mapping[str, ComputeUnit] = {
    "sm_80": ComputeUnit(164 << 10, 1024, 128, 1 << 16, 256, warps=64, programs=32),
    "sm_90": ComputeUnit(228 << 10, 1024, 128, 1 << 16, 256, warps=64, programs=32),
    "sm_100": ComputeUnit(228 << 10, 1024, 128, 1 << 16, 256, warps=64, programs=32),
    "gfx942": ComputeUnit(64 << 10, 0, 512, 1 << 17, 512, warps=32, programs=16),
    "gfx950": ComputeUnit(160 << 10, 0, 1280, 1 << 17, 512, warps=32, programs=16),
}


def programs_per_unit(kernel: Compiled, machine: Machine) -> int | None:
    """Programs of the kernel that one of the machine's compute units holds; None where that is not known."""
    unit = COMPUTE_UNITS.get(machine.arch)
    if unit is None or kernel.registers is None:
        return None
    of_a_warp = _round_up(max(1, kernel.registers) * machine.warp_size, unit.register_granule)
    warps = min(unit.warps, QUARTERS * (unit.registers // QUARTERS // of_a_warp))
    shared = _round_up(kernel.shared_memory + unit.taken, unit.granule)
    return min(unit.programs, warps // kernel.warps, unit.shared_memory // max(1, shared))


def starvation(kernels: Sequence[Compiled], machine: Machine) -> str | None:
    """The reason that programs could wait for others without room; None if all that must be resident are.

    ``kernels`` run side by side as far as they say how many programs must be ``resident``. What is not known of a
    kernel, registers or the architecture, is not held against it.
    """
    wanted = 0
    for kernel in kernels:
        if kernel.resident is None:
            continue
        held = programs_per_unit(kernel, machine)
        if held is None:
            return None
        if held == 0:
            return f"{kernel.name}: no compute unit holds a program of {kernel.warps} warps, {_needs(kernel)}"
        wanted += math.ceil(kernel.resident / held)
    if wanted <= machine.compute_units:
        return None
    which = "; ".join(
        f"{kernel.name}: {kernel.resident} programs, {programs_per_unit(kernel, machine)} to a unit ({_needs(kernel)})"
        for kernel in kernels
        if kernel.resident is not None
    )
    return f"programs wait for each other that need {wanted} of {machine.compute_units} compute units: {which}"


def _needs(kernel: Compiled) -> str:
    return f"{kernel.registers} registers, {kernel.shared_memory} bytes of shared memory"


def _round_up(value: int, granule: int) -> int:
    return -(-value // granule) * granule
