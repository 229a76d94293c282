"""Warp specialization, which the interpreter does not run: random problems on GPUs; where it is and where it is not."""

from __future__ import annotations

import random
from typing import Any

import pytest
from compile_worker import DEADLINE, Compilers, assembly
from every_mode import check_all
from fakes import EIGHT_GPUS

from autotune.config import Config
from autotune.kernels.all_gather_gemm.space import tail_parts
from autotune.kernels.all_gather_gemm.specialized_modes import WarpSpecialized
from autotune.machine import H100, MI300X, machine
from autotune.sizes import round_up
from autotune.task import Task
from autotune.workloads import workload

MODE = "warp_specialized"
KINDS: list[dict[str, Any]] = [
    {"dtype": "bf16"}, {"dtype": "fp16", "b_order": "nk"}, {"dtype": "bf16", "b_order": "nk"},
    {"dtype": "fp8", "scales": "row", "b_order": "nk"}, {"dtype": "fp8", "scales": "tensor", "b_order": "nk"},
    {"dtype": "fp8_e5m2", "scales": "row", "b_order": "nk", "fast_accum": True},
    {"dtype": "fp8", "scales": "block", "b_order": "nk"},
]  # fmt: skip
GATED: list[dict[str, Any]] = [
    {"dtype": "bf16", "b_order": "nk", "epilogue": "swiglu"}, {"dtype": "fp16", "epilogue": "geglu"},
    {"dtype": "fp8", "scales": "row", "b_order": "nk", "epilogue": "swiglu"},
    {"dtype": "fp8_e5m2", "scales": "block", "b_order": "nk", "epilogue": "geglu"},
]  # fmt: skip
TILES = [(128, 256, 4), (128, 128, 6), (64, 128, 6), (256, 128, 3), (64, 256, 3)]

EXPERTS: list[tuple[dict[str, Any], int]] = [
    ({"dtype": "bf16"}, 8), ({"dtype": "bf16", "b_order": "kn"}, 64), ({"dtype": "fp16", "bias": True}, 8),
    ({"dtype": "fp8", "scales": "row"}, 16), ({"dtype": "fp8", "scales": "block"}, 128),
]  # fmt: skip
"""Each with what sizes are multiples of."""

GATHER, DISPATCH, COMBINE = (workload(each) for each in ("all_gather_gemm", "moe_dispatch_gemm", "moe_gemm_combine"))


def gathering(rng: random.Random, world_size: int) -> tuple[Any, dict[str, Any]]:
    kind = rng.choice([*KINDS, *GATED])
    by_blocks = kind.get("scales") == "block"
    columns = 128 * rng.randint(1, 25) if by_blocks and "epilogue" in kind else 16 * rng.randint(8, 200)
    across, chunks = rng.random() < 0.5, rng.choice((1, 2, 4))
    rows = rng.randint(64 // world_size + 1, 512 // world_size) if across else rng.randint(64, 700)
    depth = 128 * rng.randint(1, 38) if by_blocks else 16 * rng.randint(4, 300)
    problem = GATHER.problem_type(
        m=world_size * rows, n=world_size * columns, world_size=world_size, bias=rng.random() < 0.3,
        k=512 * rng.randint(1, 9) if across and chunks > 1 else depth, **kind,
    )  # fmt: skip
    most = round_up(max(16, rows))
    units = most if across else min(most, rng.choice((16, 32, 128, 512)))
    sending = {"sending_warps": rng.choice((1, 2)), "across_shards": chunks if across else 0, "split_tail": False}
    return problem, sending | {"transfer_rows": units}


def dispatching(rng: random.Random, world_size: int) -> tuple[Any, dict[str, Any]]:
    return of_experts(DISPATCH, rng, world_size, epilogue=rng.choice(("none", "swiglu", "swiglu_oai")))


def combining(rng: random.Random, world_size: int) -> tuple[Any, dict[str, Any]]:
    return of_experts(COMBINE, rng, world_size)


def of_experts(found: Any, rng: random.Random, world_size: int, **fields: Any) -> tuple[Any, dict[str, Any]]:
    (kind, whole), experts = rng.choice(EXPERTS), world_size * rng.randint(1, 20)
    problem = found.problem_type(
        tokens=rng.randint(1, 900), hidden=whole * rng.randint(128 // whole, 2048 // whole),
        width=whole * rng.randint(128 // whole, 1280 // whole), experts=experts,
        top_k=rng.randint(1, min(8, experts)), world_size=world_size, **kind, **fields,
    )  # fmt: skip
    return problem, dict(next(c for c in found.first_configs(Task(problem, H100)) if c["mode"] == MODE))


DRAWN = {GATHER: gathering, DISPATCH: dispatching, COMBINE: combining}


def drawn(found: Any, rng: random.Random, world_size: int) -> tuple[Any, Config]:
    problem, knobs = DRAWN[found](rng, world_size)
    while True:
        block_m, block_n, num_stages = rng.choice(TILES)
        config = Config({
            **knobs, "mode": MODE, "block_m": block_m, "block_n": block_n, "block_k": 128 // problem.element_size,
            "group_m": rng.choice((1, 2, 8, 16)), "num_stages": num_stages,
            "consumers": rng.choice(("cooperative", "pingpong")),
        })  # fmt: skip
        if "split_tail" in knobs:
            config = config.replace(split_tail=rng.random() < 0.5)
        if found.space.violation(config, Task(problem, machine())) is None:
            return problem, config


def sizes_of(found: Any) -> dict[str, int]:
    experts = {"tokens": 1024, "hidden": 2048, "width": 1024, "experts": 64, "top_k": 8}
    return {"m": 1024, "n": 28672, "k": 8192} if found is GATHER else experts


@pytest.mark.parametrize("found", [GATHER, DISPATCH], ids=lambda found: found.name)
@pytest.mark.parametrize(("consumers", "more"), [("cooperative", 0), ("pingpong", 2)])
def test_no_barrier_is_made_that_nothing_waits_for(found: Any, consumers: str, more: int, compilers: Compilers) -> None:
    """The compiler gives its memory to something else, which a GPU then overwrites."""
    task = Task(found.problem_type(**sizes_of(found), world_size=2), H100)
    first = next(config for config in found.first_configs(task) if config["mode"] == MODE)
    config = first.replace(consumers=consumers, block_m=128, block_n=128, num_stages=4)
    *_, text = compilers.submit(H100, assembly, task, config).result(DEADLINE)
    assert text.count("mbarrier.init") == 2 * config["num_stages"] + more


@pytest.mark.gpu(2, each=True)
@pytest.mark.parametrize("found", DRAWN, ids=lambda found: found.name)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 100))])
def test_random_problems_are_right_on_gpus(found: Any, seed: int) -> None:
    if machine().arch != H100.arch:
        pytest.skip(f"warp specialization is for {H100.arch}")
    rng = random.Random(seed)
    for _ in range(10):
        problem, config = drawn(found, rng, machine().gpus)
        check_all(found, problem, [config], {MODE}, calls=3)


@pytest.mark.parametrize(
    ("found", "fields", "here", "is_there"),
    [
        (GATHER, {}, H100, True),
        (GATHER, {}, EIGHT_GPUS, True),
        (GATHER, {}, MI300X, False),
        (GATHER, {"m": 64}, H100, False),
        (GATHER, {"m": 256}, H100, True),
        (GATHER, {"m": 72, "dtype": "fp8", "scales": "row", "b_order": "nk"}, EIGHT_GPUS, True),
        (GATHER, {"m": 256, "gathered": True}, H100, False),
        (GATHER, {"layout": "k"}, H100, False),
        (GATHER, {"epilogue": "swiglu"}, H100, True),
        (GATHER, {"epilogue": "swiglu", "gate_up": "interleaved"}, H100, False),
        (GATHER, {"epilogue": "swiglu", "quantised": True}, H100, False),
        (GATHER, {"dtype": "fp32"}, H100, False),
        (GATHER, {"dtype": "fp8", "scales": "block", "b_order": "nk"}, H100, True),
        (GATHER, {"dtype": "fp8", "scales": "block", "b_order": "nk", "epilogue": "swiglu"}, H100, True),
        (GATHER, {"dtype": "fp8", "scales": "block", "b_order": "nk", "epilogue": "swiglu", "n": 28704}, H100, False),
        (GATHER, {"k": 1000 + 4}, H100, False),
        (DISPATCH, {}, H100, True),
        (DISPATCH, {"gate_up": "interleaved"}, H100, False),
        (DISPATCH, {"dtype": "fp8", "scales": "block"}, EIGHT_GPUS, True),
        (DISPATCH, {"hidden": 1000, "b_order": "kn"}, H100, False),
        (COMBINE, {"dtype": "fp8", "scales": "row"}, H100, True),
        (COMBINE, {}, MI300X, False),
    ],
)
def test_it_is_tried_where_it_may_be(found: Any, fields: dict[str, Any], here: Any, is_there: bool) -> None:
    problem = found.problem_type(**{**sizes_of(found), "world_size": 2} | fields)
    configs = found.first_configs(Task(problem, here))
    assert any(config["mode"] == MODE for config in configs) == is_there


@pytest.mark.parametrize("seed", range(4))
def test_rounds_are_those_of_the_program_that_begins_a_shard(seed: int) -> None:
    rng, units = random.Random(seed), H100.compute_units
    for _ in range(20):
        ranks = rng.choice((2, 4, 8))
        sizes = {"m": ranks * rng.randint(128, 2000), "n": ranks * 16 * rng.randint(8, 1000)}
        task = Task(GATHER.problem_type(**sizes, k=4096, world_size=ranks, dtype="bf16", b_order="nk"), H100)
        for way in (way for way in WarpSpecialized.filling(task) if not way.across_shards):
            assert GATHER.space.violation(way.config(), task) is None
            own = way.tiles(task.problem.shard[0], task.problem.n_local)
            parts = tail_parts(task, way)
            left = ranks * own % units if parts > 1 else 0
            items = [1.0] * (ranks * own - left) + [1 / parts] * (left * parts)
            for shard in range(ranks):
                assert way.rounds(task, shard) == pytest.approx(sum(items[shard * own :: units]))
