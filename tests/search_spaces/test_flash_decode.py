"""The space of flash decode: what is tried first is valid everywhere, and what it calls valid compiles."""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
from compile_worker import Compilers
from every_mode import whole

from autotune.config import Config
from autotune.machine import H100, MI300X, MI350X, Machine
from autotune.workloads import workload

FOUND = workload("flash_decode")
LAPTOP = Machine("interpreter", "cpu-interpreter", "cpu", 0, 8, 1 << 30, 0, "shared-memory")
H200 = dataclasses.replace(H100, device="NVIDIA H200")
MACHINES = {"h200": H200, "mi300x": MI300X, "mi350x": MI350X, "laptop": LAPTOP}
SAMPLE = int(os.environ.get("COMPILE_SAMPLE", "60")) // 20
"""Configs for each target; AMD's have the rungs alone (``test_rungs_compile``) unless with ``-m slow``."""


def problems(world_size: int) -> Iterator[Any]:
    """Shapes that serving has, even and odd."""
    heads = ((96, 12), (64, 8), (16, 16), (3, 1), (128, 1))
    for (q_heads, kv_heads), head_dim, batch, kv_len in itertools.product(
        heads, (64, 256), (1, 16, 100), (1, 77, 524288)
    ):
        sizes = {"q_heads": q_heads, "kv_heads": kv_heads, "head_dim": head_dim, "kv_len": kv_len}
        result = "replicated" if q_heads % world_size or batch == 1 else "heads"
        yield FOUND.problem_type(batch=batch, **sizes, world_size=world_size, result=result)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("world_size", [1, 8])
def test_defaults_first_configs_and_baselines_are_valid(machine: Machine, world_size: int) -> None:
    for problem in problems(world_size):
        first = FOUND.first_configs(problem, machine)
        baselines = FOUND.baselines(problem, machine)
        for config in (*first, *baselines.values()):
            FOUND.space.check(config, problem, machine)
        assert first[0] == FOUND.default_config(problem, machine)
        assert {config["mode"] for config in (*first, *baselines.values())} == set(FOUND.space.modes)
        assert set(baselines) == ({"bsp eager"} if machine.is_interpreter else {"bsp eager", "bsp graph"})


def test_the_space_holds_the_papers_config() -> None:
    paper = FOUND.problem_type(batch=1, q_heads=96, kv_heads=12, head_dim=128, kv_len=8192, dtype="fp16", world_size=8)
    default = FOUND.default_config(paper, H200)
    constants = {"block_n": 64, "kv_splits": 32, "heads_per_program": 8, "num_warps": 4, "num_stages": 2}
    FOUND.space.check(default.replace(**constants, reducer="kernel", combine_site="next_launch"), paper, H200)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_words_are_tried_only_where_ordinary_stores_arrive(machine: Machine) -> None:
    problem = FOUND.default_problem(machine, 2)
    tried = {config.get("protocol") for config in FOUND.first_configs(problem, machine)}
    for protocol in ("ll", "sentinel"):
        words = FOUND.default_config(problem, machine).replace(protocol=protocol)
        refused = FOUND.space.violation(words, problem, machine)
        assert (refused is not None and "NVIDIA" in refused) == (machine.kind == "hip")
        assert (protocol in tried) == (machine.kind != "hip")


def test_words_are_no_fewer_than_threads() -> None:
    """Else two threads hold the same word, and may see it before and after it has come."""
    problem = FOUND.problem_type(batch=1, q_heads=16, kv_heads=2, head_dim=64, kv_len=4096, world_size=2)
    words = FOUND.default_config(problem, H200).replace(protocol="sentinel", block_n=64)
    for combine_heads, num_warps, right in ((1, 4, True), (1, 8, False), (2, 8, True)):
        config = words.replace(transfer_heads=2, combine_heads=combine_heads, num_warps=num_warps)
        refused = FOUND.space.violation(config, problem, H200)
        assert (refused is None) == right and (right or "than threads" in str(refused)), refused


def drawn(problem: Any, machine: Machine, rng: random.Random, count: int) -> list[Config]:
    """Valid configs, the modes in turn."""
    space = FOUND.space.narrowed(problem, machine)
    found: list[Config] = []
    modes = itertools.cycle(reversed(space.modes))
    mode = next(modes)
    while len(found) < count:
        config = Config({d.name: rng.choice(d.values) for d in space.dimensions_of(mode)} | {"mode": mode})
        if space.violation(config, problem, machine) is None:
            found.append(config)
            mode = next(modes)
    return found


@pytest.mark.parametrize("machine", [H100, whole(MI300X), whole(MI350X)], ids=lambda machine: machine.arch)
def test_a_sample_of_the_space_compiles_and_fits(machine: Machine, compilers: Compilers) -> None:
    shape = {"batch": 4, "q_heads": 96, "kv_heads": 12, "kv_len": 32768, "world_size": 8}
    shapes = [
        FOUND.problem_type(head_dim=128, dtype="fp16", **shape),
        FOUND.problem_type(head_dim=256, page_size=16, soft_cap=30, **shape),
        FOUND.problem_type(head_dim=64, page_size=256, result="heads", **shape),
    ]
    rng = random.Random(7)
    jobs = [(problem, c) for problem in shapes for c in drawn(problem, machine, rng, max(1, SAMPLE // len(shapes)))]
    for config, kernels in compilers.compiled(machine, jobs):
        for kernel in kernels:
            assert kernel.shared_memory <= machine.shared_memory, f"{config}: {kernel}"
            if machine.kind == "hip":
                assert kernel.registers is not None and kernel.spills == 0, f"{config}: {kernel}"
