"""Occupancy: NVIDIA's and AMD's rules by known examples, and what is refused because a program could starve another."""

from __future__ import annotations

import dataclasses

import pytest
from compile_worker import Compilers, compile_crowd
from every_mode import whole

from autotune.config import Config
from autotune.kernels.launching.plan import Compiled
from autotune.kernels.launching.residency import programs_per_unit, starvation
from autotune.machine import H100, INTERPRETED, MI300X, MI350X, Machine
from autotune.task import Task
from autotune.workloads import workload


def kernel(
    registers: int | None, shared: int = 0, warps: int = 4, resident: int | None = None, name: str = "k"
) -> Compiled:
    return Compiled(name, shared, registers, 0, warps, resident)


@pytest.mark.parametrize(
    ("machine", "compiled", "programs"),
    [
        # By NVIDIA's occupancy calculator for compute capability 9.0.
        (H100, kernel(32, warps=4), 16),
        (H100, kernel(33, warps=4), 12),
        (H100, kernel(255, warps=8), 1),
        (H100, kernel(128, warps=8), 2),
        (H100, kernel(129, warps=8), 1),
        (H100, kernel(168, warps=4), 3),
        (H100, kernel(16, warps=1), 32),
        (H100, kernel(32, shared=113 << 10, warps=4), 2),
        (H100, kernel(32, shared=(113 << 10) + 128, warps=4), 1),
        (H100, kernel(32, shared=227 << 10, warps=4), 1),
        # Waves on a SIMD unit by LLVM: 8 up to 64 vector registers, 4 up to 128, 2 up to 256, 1 up to 512.
        (MI300X, kernel(64, warps=4), 8),
        (MI300X, kernel(65, warps=4), 7),
        (MI300X, kernel(128, warps=4), 4),
        (MI300X, kernel(129, warps=8), 1),
        (MI300X, kernel(512, warps=4), 1),
        (MI300X, kernel(64, shared=32 << 10, warps=4), 2),
        (MI300X, kernel(16, warps=1), 16),
        (MI350X, kernel(64, shared=80 << 10, warps=4), 2),
        (MI350X, kernel(64, shared=(80 << 10) + 1, warps=4), 1),
        (H100, kernel(None), None),
        (INTERPRETED, kernel(32), None),
    ],
)
def test_programs_on_a_compute_unit(machine: Machine, compiled: Compiled, programs: int | None) -> None:
    assert programs_per_unit(compiled, machine) == programs


def test_as_many_as_fit_may_wait_for_each_other() -> None:
    room = 2 * H100.compute_units
    assert starvation([kernel(128, warps=8, resident=room)], H100) is None
    refused = starvation([kernel(128, warps=8, resident=room + 1)], H100)
    assert refused is not None and "265 programs" in refused


def test_those_who_run_side_by_side_share_the_room() -> None:
    push, gemm = kernel(56, resident=16, name="push"), kernel(164, warps=8, resident=116, name="gemm")
    assert starvation([push, gemm], H100) is None, "4 units for the push, 116 for the GEMM"
    refused = starvation([push, dataclasses.replace(gemm, resident=131)], H100)
    assert refused is not None and "133 of 132" in refused


def test_what_fits_nowhere_is_named() -> None:
    refused = starvation([kernel(255, warps=16, resident=1)], H100)
    assert refused is not None and "16 warps" in refused


@pytest.mark.parametrize("unknown", [kernel(None, resident=10**6), kernel(255, warps=8, shared=200 << 10)])
def test_what_is_not_known_or_not_needed_is_not_held_against_a_kernel(unknown: Compiled) -> None:
    assert starvation([unknown], H100) is None


def compiled(compilers: Compilers, name: str, machine: Machine, **changes: int | str | bool) -> list[Compiled]:
    found = workload(name)
    problem = found.problem_type(m=4096, n=8192, k=8192, world_size=8)
    push = next(each for each in found.first_configs(Task(problem, machine)) if each["mode"] == "push")
    config = Config({**push, **changes})
    assert found.space.violation(config, Task(problem, machine)) is None
    [(_, kernels)] = compilers.compiled(machine, [(problem, config)])
    return kernels


@pytest.mark.parametrize("machine", [H100, whole(MI300X)], ids=lambda machine: machine.arch)
def test_our_kernels_say_who_must_be_resident(compilers: Compilers, machine: Machine) -> None:
    units = machine.compute_units
    side = {"schedule": "persistent", "push_site": "side_stream", "comm_programs": 16, "head_start": 0}
    push, gemm = compiled(compilers, "all_gather_gemm", machine, **side)
    (first_come,) = compiled(compilers, "all_gather_gemm", machine, schedule="persistent")
    (scatter,) = compiled(compilers, "gemm_reduce_scatter", machine, schedule="persistent")
    assert (push.resident, gemm.resident, first_come.resident) == (16, units - 16, None)
    assert scatter.resident == units
    assert starvation([push, gemm], machine) is None and starvation([scatter], machine) is None
    for kernel in (push, gemm, first_come, scatter):
        assert kernel.registers is not None and 16 < kernel.registers <= 512 and kernel.warps in (4, 8)
        assert kernel.spills is not None


def test_two_programs_of_a_crowd_fill_a_multiprocessor(compilers: Compilers) -> None:
    """What crowds a rank in the check's bursts leaves no thread to others, and takes their memory from nobody."""
    (crowd,) = compilers.submit(H100, compile_crowd).result()
    assert programs_per_unit(crowd, H100) == 2 and crowd.shared_memory == 0
