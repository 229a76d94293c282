"""Configs that the space calls valid compile for NVIDIA's and AMD's GPUs, on a machine that has neither."""

from __future__ import annotations

import os
import random
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest
from compile_worker import compile_one

from autotune.config import Config
from autotune.environment import H100, MI300X, MI350X, Machine
from autotune.workloads import workload

NOT_OURS = ("bsp", "copy_engine")
"""Modes that call the library."""


def problem(name: str, **sizes: Any) -> Any:
    return workload(name).problem_type(**sizes)


PROBLEMS = {
    "all_gather_gemm": (
        problem("all_gather_gemm", m=1024, n=28672, k=8192, world_size=4),
        problem(
            "all_gather_gemm", m=200, n=8 * 360, k=2880, layout="k", dtype="fp16", bias=True, b_order="nk", world_size=8
        ),
    ),
    "gemm_all_reduce": (
        problem("gemm_all_reduce", m=64, n=8192, k=28672, world_size=8),
        problem("gemm_all_reduce", m=9, n=360, k=6 * 500, dtype="fp16", bias=True, b_order="nk", world_size=6),
    ),
}
"""By workload one problem of the size that matters, and an odd one."""
SAMPLE = int(os.environ.get("COMPILE_SAMPLE", "18"))
"""Configs for each target and workload; 18 take about 8 s on two cores, from an empty compiler cache."""


def sample(problem: Any, machine: Machine, count: int) -> list[Config]:
    """Valid configs with kernels of their own, drawn at random, the same ones each time."""
    rng = random.Random(7)
    space = workload(problem.workload).space.narrowed(problem, machine)
    found: dict[Config, None] = {}
    while len(found) < count:
        mode = rng.choice([mode for mode in space.modes if mode not in NOT_OURS])
        drawn = {d.name: rng.choice(d.values) for d in space.dimensions_of(mode)}
        config = Config({**drawn, "mode": mode})
        if space.violation(config, problem, machine) is None:
            found[config] = None
    return list(found)


@pytest.mark.parametrize("machine", [H100, MI300X, MI350X], ids=lambda machine: machine.arch)
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_sample_of_the_space_compiles_and_fits(name: str, machine: Machine) -> None:
    usual, odd = PROBLEMS[name]
    jobs = [(usual, config) for config in sample(usual, machine, SAMPLE * 2 // 3)]
    jobs += [(odd, config) for config in sample(odd, machine, SAMPLE - len(jobs))]
    assert {config["mode"] for _, config in jobs} == set(workload(name).space.modes) - set(NOT_OURS)
    spilled = 0
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        futures = [(config, pool.submit(compile_one, machine, problem, config)) for problem, config in jobs]
        for config, future in futures:
            kernels = future.result()
            assert kernels, config
            for kernel in kernels:
                assert 0 < kernel.shared_memory <= machine.shared_memory or kernel.name == "push_kernel", config
                if machine.kind == "hip":
                    assert kernel.registers is not None and kernel.spills is not None, f"{config}: {kernel}"
                    spilled += kernel.spills > 0
    assert spilled <= max(
        1, SAMPLE // 20
    )  # the search finds them slow; more would say that the registers' constraint is wrong
