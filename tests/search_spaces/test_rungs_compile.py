"""The rungs of ``tune taxes`` compile for every target."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autotune.machine import H100, MI300X, MI350X, Machine
from autotune.taxes.measure import ladder_of
from autotune.workloads import workload

NAMES = ("all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce", "flash_decode")
TARGETS = pytest.mark.parametrize("machine", [H100, MI300X, MI350X], ids=["sm_90", "gfx942", "gfx950"])


def check(compiled: Callable[..., object], machine: Machine, letters: str, name: str) -> None:
    """Compile the letters' rungs of the default config, and see that they need no more than there is."""
    found = workload(name)
    problem = found.default_problem(machine, 4)
    default = found.default_config(problem, machine)
    rungs, _ = ladder_of(found, problem, machine, default, default)
    jobs = [(problem, rungs[letter]) for letter in letters if letter in rungs]
    assert jobs
    for config, kernels in compiled(machine, jobs):  # type: ignore[attr-defined]
        assert all(kernel.shared_memory <= machine.shared_memory for kernel in kernels), config


@TARGETS
def test_the_barriers_compile(compiled: Callable[..., object], machine: Machine) -> None:
    """The smallest and the most unlike of the four workloads."""
    check(compiled, machine, "S", "flash_decode")
    check(compiled, machine, "S", "gemm_all_reduce")


@pytest.mark.slow
@TARGETS
@pytest.mark.parametrize("name", NAMES)
def test_every_rung_compiles(compiled: Callable[..., object], machine: Machine, name: str) -> None:
    check(compiled, machine, "BSDF", name)
