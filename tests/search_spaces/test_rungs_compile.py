"""The rungs of ``tune taxes`` compile for every target."""

from __future__ import annotations

import pytest
from compile_worker import Compilers

from autotune.machine import H100, MI300X, MI350X, Machine
from autotune.task import Task
from autotune.taxes.measure import ladder_of
from autotune.workloads import workload

NAMES = ("all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce", "flash_decode")
TARGETS = pytest.mark.parametrize("machine", [H100, MI300X, MI350X], ids=lambda machine: machine.arch)


def check(compilers: Compilers, machine: Machine, letters: str, name: str) -> None:
    """Compile the letters' rungs of the default config, and see that they need no more than there is."""
    found = workload(name)
    problem = found.default_problem(machine, 4)
    default = found.default_config(Task(problem, machine))
    rungs, _ = ladder_of(found, Task(problem, machine), default, default)
    jobs = [(problem, rungs[letter]) for letter in letters if letter in rungs]
    assert jobs
    for config, kernels in compilers.compiled(machine, jobs):
        assert all(kernel.shared_memory <= machine.shared_memory for kernel in kernels), config


@pytest.mark.parametrize(("machine", "name"), [(H100, "gemm_all_reduce"), (MI300X, "flash_decode")])
def test_the_phases_compile(compilers: Compilers, machine: Machine, name: str) -> None:
    """The two most unlike of the four workloads."""
    check(compilers, machine, "B", name)


@pytest.mark.slow
@TARGETS
@pytest.mark.parametrize("name", NAMES)
def test_every_rung_compiles(compilers: Compilers, machine: Machine, name: str) -> None:
    check(compilers, machine, "BDF", name)
