"""Warp specialization, which the interpreter does not run: random problems on GPUs; where it is and where it is not."""

from __future__ import annotations

import random
from typing import Any

import pytest
from compile_worker import DEADLINE, Compilers, assembly
from every_mode import check_all
from fakes import EIGHT_GPUS

from autotune.config import Config
from autotune.kernels.all_gather_gemm.modes import WarpSpecialized
from autotune.machine import H100, MI300X, machine
from autotune.task import Task
from autotune.workloads import workload

MODE = "warp_specialized"
KINDS: list[dict[str, Any]] = [
    {"dtype": "bf16"}, {"dtype": "fp16", "b_order": "nk"}, {"dtype": "bf16", "b_order": "nk"},
    {"dtype": "fp8", "scales": "row", "b_order": "nk"}, {"dtype": "fp8", "scales": "tensor", "b_order": "nk"},
    {"dtype": "fp8_e5m2", "scales": "row", "b_order": "nk", "fast_accum": True},
    {"dtype": "bf16", "b_order": "nk", "epilogue": "swiglu"}, {"dtype": "fp16", "epilogue": "geglu"},
    {"dtype": "fp8", "scales": "row", "b_order": "nk", "epilogue": "swiglu"},
    {"dtype": "fp8", "scales": "block", "b_order": "nk"},
    {"dtype": "fp8_e5m2", "scales": "block", "b_order": "nk", "epilogue": "geglu"},
]  # fmt: skip
TILES = [(128, 256, 4), (128, 128, 6), (64, 128, 6), (256, 128, 3), (64, 256, 3)]


WORKLOAD = workload("all_gather_gemm")


def drawn(rng: random.Random, world_size: int) -> tuple[Any, Config]:
    kind = rng.choice(KINDS)
    by_blocks = kind.get("scales") == "block"
    columns = 128 * rng.randint(1, 25) if by_blocks and "epilogue" in kind else 16 * rng.randint(8, 200)
    problem = WORKLOAD.problem_type(
        m=world_size * rng.randint(64, 700), n=world_size * columns, world_size=world_size, bias=rng.random() < 0.3,
        k=128 * rng.randint(1, 38) if by_blocks else 16 * rng.randint(4, 300), **kind,
    )  # fmt: skip
    while True:
        block_m, block_n, num_stages = rng.choice(TILES)
        config = Config({
            "mode": MODE, "block_m": block_m, "block_n": block_n, "block_k": 128 // problem.element_size,
            "group_m": rng.choice((1, 2, 8, 16)), "num_stages": num_stages,
            "consumers": rng.choice(("cooperative", "pingpong")),
            "transfer_rows": rng.choice((16, 32, 128, 512)), "sending_warps": rng.choice((1, 2)),
        })  # fmt: skip
        if WORKLOAD.space.violation(config, Task(problem, machine())) is None:
            return problem, config


@pytest.mark.parametrize(("consumers", "more"), [("cooperative", 0), ("pingpong", 2)])
def test_no_barrier_is_made_that_nothing_waits_for(consumers: str, more: int, compilers: Compilers) -> None:
    """The compiler gives its memory to something else, which a GPU then overwrites."""
    problem = WORKLOAD.problem_type(m=2048, n=8192, k=2048, world_size=2)
    config = WarpSpecialized.filling(Task(problem, H100)).replace(consumers=consumers, block_n=128).config()
    (text,) = compilers.submit(H100, assembly, Task(problem, H100), config).result(DEADLINE)
    assert text.count("mbarrier.init") == 2 * config["num_stages"] + more


@pytest.mark.gpu(2, each=True)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 100))])
def test_random_problems_are_right_on_gpus(seed: int) -> None:
    if machine().arch != H100.arch:
        pytest.skip(f"warp specialization is for {H100.arch}")
    rng = random.Random(seed)
    for _ in range(10):
        problem, config = drawn(rng, machine().gpus)
        check_all(WORKLOAD, problem, [config], {MODE}, calls=3)


@pytest.mark.parametrize(
    ("fields", "here", "is_there"),
    [
        ({}, H100, True),
        ({}, EIGHT_GPUS, True),
        ({}, MI300X, False),
        ({"m": 64}, H100, False),
        ({"layout": "k"}, H100, False),
        ({"epilogue": "swiglu"}, H100, True),
        ({"epilogue": "swiglu", "gate_up": "interleaved"}, H100, False),
        ({"epilogue": "swiglu", "quantised": True}, H100, False),
        ({"dtype": "fp32"}, H100, False),
        ({"dtype": "fp8", "scales": "block", "b_order": "nk"}, H100, True),
        ({"dtype": "fp8", "scales": "block", "b_order": "nk", "epilogue": "swiglu"}, H100, True),
        ({"dtype": "fp8", "scales": "block", "b_order": "nk", "epilogue": "swiglu", "n": 28704}, H100, False),
        ({"k": 1000 + 4}, H100, False),
    ],
)
def test_it_is_tried_where_it_may_be(fields: dict[str, Any], here: Any, is_there: bool) -> None:
    problem = WORKLOAD.problem_type(**{"m": 1024, "n": 28672, "k": 8192, "world_size": 2} | fields)
    configs = WORKLOAD.first_configs(Task(problem, here))
    assert any(config["mode"] == MODE for config in configs) == is_there
