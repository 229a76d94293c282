"""Configs tried without measuring are valid on every machine, for shapes from a token to a training step."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from every_mode import whole
from fakes import LAPTOP

from autotune.errors import InputError
from autotune.machine import H100, HOSTS, MI300X, Machine
from autotune.recordings.file import read
from autotune.task import Task
from autotune.workloads import names, workload

ANY_MACHINE = (
    *HOSTS.values(), LAPTOP, dataclasses.replace(H100, compute_units=78),
    dataclasses.replace(H100, arch="sm_80", device="A100", compute_units=108, shared_memory=163 * 1024),
    dataclasses.replace(H100, arch="sm_120", compute_units=188, shared_memory=99 * 1024, interconnect="pcie-peer"),
    dataclasses.replace(H100, arch="sm_210", device="unheard of"),
)  # fmt: skip


def drawn(name: str, rng: random.Random, **fields: Any) -> Task[Any]:
    """A problem of any sizes, odd ones among them, on any machine."""
    kind, ranks = workload(name).problem_type, rng.choice([1, 2, 2, 3, 4, 8])

    def size(most: int) -> int:
        return round(math.exp(rng.uniform(0, math.log(most)))) * rng.choice([1, 1, 8, 128])

    options = {
        "dtype": rng.choice(["bf16", "fp16", "fp32"]), "b_order": rng.choice(["kn", "nk"]), "bias": rng.random() < 0.5,
        "layout": rng.choice(["rows", "rows", "k"]), "gathered": rng.random() < 0.2,
        "wire": rng.choice(["auto", "fp8"]), "epilogue": rng.choice(["none", "none", "swiglu"]),
        "deterministic": rng.random() < 0.2,
    }  # fmt: skip
    if rng.random() < 0.3:
        options |= {"dtype": "fp8", "b_order": "nk", "scales": rng.choice(["row", "block"]), "gathered": False}
    sizes = {"m": ranks * size(8192), "n": ranks * 16 * size(2000), "k": ranks * 128 * size(128), "world_size": ranks}
    sizes |= {"tokens": size(4096), "hidden": 16 * size(1024), "width": 16 * size(512), "experts": ranks * size(32)}
    sizes |= {"top_k": rng.randint(1, 8), "batch": size(128), "kv_len": 16 * size(4096), "q_heads": 8 * size(16)}
    sizes |= {"kv_heads": rng.choice([1, 2, 8]), "head_dim": rng.choice([64, 128, 256])}
    options |= {"result": rng.choice(["replicated", "heads"]), "page_size": rng.choice([1, 16, 77])}
    options |= {"quantised": options["epilogue"] != "none" and rng.random() < 0.5, "residual": rng.random() < 0.3}
    if name.endswith("norm"):
        options["quantised"] = rng.choice(["none", "row", "block"])
    known = {each.name for each in dataclasses.fields(kind)}
    given = {key: value for key, value in {**sizes, **options, **fields}.items() if key in known}
    return Task(kind(**given), rng.choice(ANY_MACHINE))


def tasks(name: str, count: int, **fields: Any) -> Iterator[Task[Any]]:
    """So many that the space has something for: no fp8 where it is not multiplied, no row too wide for a norm, no C of
    gigabytes, whose inboxes few configs have room for.
    """
    rng, found = random.Random(name), workload(name)
    while count:
        try:
            task = drawn(name, rng, **fields)
            found.space.check_problem(task)
        except InputError:
            continue
        if getattr(task.problem, "m", 1) * getattr(task.problem, "n", 1) > 1 << 28:
            continue
        count -= 1
        yield task


@pytest.mark.parametrize("count", [40, whole(800)])
@pytest.mark.parametrize("name", names())
def test_what_is_tried_unmeasured_is_valid_of_any_size_on_any_machine_and_the_same_again(name: str, count: int) -> None:
    found = workload(name)
    for number, task in enumerate(tasks(name, count)):
        default, first, baselines = found.default_config(task), found.first_configs(task), found.baselines(task)
        for config in (default, *first, *baselines.values()):
            found.space.check(config, task)
        assert first[0] == default == found.default_config(task)
        assert len(first) == len(set(first)) <= 16
        assert len({config["mode"] for config in first[:4]}) >= min(2, len({config["mode"] for config in first}))
        assert "bsp eager" in baselines
        if number % 5 == 0 and not name.startswith("moe"):  # a mixture's may have no room for all
            assert ("bsp graph" in baselines) != task.machine.is_interpreter
            tried = {config["mode"] for config in (*first, *baselines.values())}
            assert tried == {mode for mode in found.space.modes if any(True for _ in found.space.enumerate(task, mode))}


def test_a_tile_of_many_rows_has_one_owner_untuned() -> None:
    found = workload("all_gather_gemm")
    for task in tasks("all_gather_gemm", 300, layout="rows", epilogue="none", dtype="bf16", scales="none"):
        default, problem = found.default_config(task), task.problem
        shares_tiles = "block_m" in default and default["mode"] != "warp_specialized"
        if shares_tiles and problem.m >= 256 and not task.machine.is_interpreter and problem.world_size > 1:
            assert problem.tiled_by_shard(default["block_m"]), task


@pytest.mark.parametrize("name", ["gemm_reduce_scatter", "gemm_all_reduce", "gemm_all_reduce_norm"])
def test_a_sum_whose_parts_may_travel_as_fp8_stays_in_our_kernels(name: str) -> None:
    """The library and our collective behind its GEMM send them in the result's type."""
    found, ours = workload(name), {"push", "one_shot", "two_shot"}
    for task in tasks(name, 60, wire="fp8"):
        default = found.default_config(task)
        fused = [config for config in found.first_configs(task) if config["mode"] in ours]
        assert default["mode"] in ours or not fused or name == "gemm_all_reduce_norm"


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_where_the_links_take_longer_than_the_gemm_tiles_overlap_and_where_b_does_the_library_multiplies(
    ranks: int,
) -> None:
    gather = workload("all_gather_gemm")

    def mode(m: int, n_local: int, k: int) -> object:
        problem = gather.problem_type(m=m, n=n_local * ranks, k=k, dtype="bf16", b_order="nk", world_size=ranks)
        return gather.default_config(Task(problem, HOSTS["H200"]))["mode"]

    for k in (2048, 4096, 8192):
        assert {mode(m, 128, k) for m in (1024, 8192)} == {"push"}
        assert {mode(m, 16384, k) for m in (24, 64, 256)} == {"custom_collective"}


RECORDED = Path(__file__).parents[2] / "bench/recordings"


@pytest.mark.parametrize(
    ("table", "over"),
    [
        ("ar-16", 1.05), ("ar-64", 1.03), ("rs-2048", 1.02), ("two_gpus/ag-rows-64", 1.02), ("two_gpus/rs-512", 1.0),
    ],
)  # fmt: skip
def test_the_untuned_config_is_near_the_optimum_that_was_recorded(table: str, over: float) -> None:
    """On 4 H200 and 2 H100; the recorded config that is most like it stands in."""
    recorded = read(RECORDED / f"{table}.json.gz")
    found = workload(recorded.workload)
    default = found.default_config(Task(recorded.problem_of(found), recorded.machine))
    nearest = max(recorded.evaluations, key=lambda each: len(each.items() & default.items()))
    latency = recorded.evaluations[nearest].latency
    assert nearest["mode"] == default["mode"] and latency is not None and latency.median <= over * recorded.optimum


OF_A_TILE = ("block_m", "block_n", "block_k", "num_warps", "num_stages", "programs_per_unit", "swap_ab")
ROWS = {"dtype": "fp8", "scales": "row"}
BLOCKS = {"dtype": "fp8", "scales": "block"}


@pytest.mark.parametrize(
    ("name", "mode", "machine", "tokens", "fields", "tile"),
    [
        # Of 64 experts on 2 ranks, 8 for a token, an expert has as many rows as a rank has tokens, by four.
        ("moe_gemm_combine", "unfused", H100, 8, {}, (16, 128, 128, 4, 4, 2, True)),
        ("moe_gemm_combine", "unfused", H100, 33 * 4, {}, (64, 256, 64, 8, 4, 1, False)),
        ("moe_gemm_combine", "unfused", MI300X, 64 * 4, {}, (128, 128, 64, 8, 2, 1, False)),
        # Up to 96 rows, or where the tensor cores add up: two programs of 64 rows; else a tile in two parts.
        ("moe_gemm_combine", "unfused", H100, 96 * 4, ROWS, (64, 128, 128, 4, 4, 2, False)),
        ("moe_gemm_combine", "unfused", H100, 97 * 4, ROWS, (128, 128, 128, 4, 3, 2, False)),
        ("moe_dispatch_gemm", "unfused", H100, 97 * 4, BLOCKS, (64, 128, 128, 4, 3, 2, False)),
        ("moe_dispatch_gemm", "push", H100, 97 * 4, ROWS, (128, 256, 128, 8, 3, 1, False)),
    ],
)
def test_the_tile_that_is_written_down_unmeasured(
    name: str, mode: str, machine: Machine, tokens: int, fields: dict[str, Any], tile: tuple[object, ...]
) -> None:
    found = workload(name)
    sizes = {"hidden": 7168, "width": 2048, "experts": 64, "top_k": 8, "world_size": 2, "b_order": "nk"}
    problem = found.problem_type(tokens=tokens, **{**sizes, **fields})
    first = next(config for config in found.first_configs(Task(problem, machine)) if config["mode"] == mode)
    assert tuple(first[each] for each in OF_A_TILE) == tile
