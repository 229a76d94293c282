"""All-gather + GEMM with SwiGLU or GeGLU is right in every mode: under the interpreter, and on all GPUs there are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from every_mode import check_all, few, on_cpu, ranks_a_gpu, variants, whole
from gather_tiles import GPU_TILES, SMALL, WIDER

from autotune.kernels.all_gather_gemm.activation import reference
from autotune.machine import machine
from autotune.workloads import workload

WORKLOAD = workload("all_gather_gemm")
MODES = {"bsp", "pull", "pull_staged", "push", "custom_collective"}
FP8 = {"dtype": "fp8", "b_order": "nk"}

TILES = [SMALL, WIDER]

SOME: list[dict[str, Any]] = [
    {"m": 22, "n": 84, "k": 40, "epilogue": "geglu", "gate_up": "interleaved", "bias": True},
    {"m": 9, "n": 64, "k": 80, "epilogue": "geglu_tanh", "layout": "k", "dtype": "fp32"},
    {"m": 10, "n": 96, "k": 64, "epilogue": "swiglu", "scales": "row", "bias": True, **FP8},
]


@pytest.mark.parametrize(
    "fields",
    [
        {"m": 10, "n": 64, "k": 64, "epilogue": "swiglu", "bias": True, "gathered": True},
        whole({"m": 22, "n": 84, "k": 72, "epilogue": "swiglu", "b_order": "nk", "dtype": "fp16"}),
        *map(whole, SOME),
        whole({"m": 10, "n": 320, "k": 256, "epilogue": "swiglu", "scales": "block", **FP8}),
        whole({"m": 32, "n": 64, "k": 64, "epilogue": "swiglu", "bias": True, "gathered": True}),
    ],
    ids=lambda fields: "-".join(map(str, fields.values())),
)
def test_every_mode_is_right_under_the_interpreter(fields: dict[str, Any]) -> None:
    here = on_cpu()
    problem = WORKLOAD.problem_type(world_size=2, **fields)
    modes = MODES - ({"pull"} if problem.gathered else set())
    check_all(WORKLOAD, problem, few(problem, variants(WORKLOAD, problem, here, TILES), 1), modes)


@pytest.mark.parametrize(
    ("fields", "modes"), [*zip(SOME, [{"push", "pull"}, {"bsp", "pull_staged"}, {"bsp", "pull"}], strict=True)]
)
def test_some_modes_are_right_under_the_interpreter(fields: dict[str, Any], modes: set[str]) -> None:
    """The two kernels, and the library behind which there is one."""
    problem = WORKLOAD.problem_type(world_size=2, **fields)
    configs = [each for each in variants(WORKLOAD, problem, on_cpu(), TILES) if each["mode"] in modes]
    check_all(WORKLOAD, problem, few(problem, configs, 1), modes)


@pytest.mark.parametrize(
    "fields",
    [
        {"m": 10, "n": 96, "k": 64, "bias": True},
        whole({"m": 32, "n": 96, "k": 72, "dtype": "fp32"}),
        whole({"m": 9, "n": 160, "k": 64, "dtype": "fp16", "layout": "k"}),
    ],
    ids=lambda fields: "-".join(map(str, fields.values())),
)
def test_halves_of_rows_are_right_by_tma(fields: dict[str, Any]) -> None:
    """Two tiles of B, each with its sum; the last ones are ragged."""
    problem = WORKLOAD.problem_type(world_size=2, epilogue="swiglu", b_order="kn", **fields)
    configs = [each for each in variants(WORKLOAD, problem, on_cpu(), TILES) if each.get("loads") == "tma"]
    check_all(WORKLOAD, problem, few(problem, configs, 1), {"push", "pull_staged"})


@pytest.mark.parametrize("dtype", ["bf16", whole("fp32")])
@pytest.mark.parametrize("b_order", ["kn", whole("nk")])
def test_tma_is_valid_where_it_is_right(dtype: str, b_order: str) -> None:
    """However wide a rank's B is: its rows, their halves and C's rows are multiples of 16 bytes, or there is no TMA."""
    by_tma = set()
    for width in (20, 24, 40, 48, 50):
        problem = WORKLOAD.problem_type(
            m=10, n=2 * width, k=64, epilogue="swiglu", b_order=b_order, dtype=dtype, out_dtype="fp32", world_size=2
        )
        configs = [each for each in variants(WORKLOAD, problem, on_cpu(), TILES) if each.get("loads") == "tma"]
        check_all(WORKLOAD, problem, few(problem, configs, 1), set())
        by_tma |= {width} if configs else set()
    assert by_tma >= {48}


@pytest.mark.parametrize(
    "fields",
    [{"m": 54, "n": 512, "k": 64, "scales": "row", **FP8}, whole({"m": 10, "n": 1024, "k": 64, "bias": True})],
    ids=lambda fields: "-".join(map(str, fields.values())),
)
def test_every_mode_is_right_with_a_result_in_fp8(fields: dict[str, Any]) -> None:
    """The scales are compared with it: results are what they multiply."""
    problem = WORKLOAD.problem_type(world_size=2, epilogue="swiglu", quantised=True, **fields)
    tiles = [{**TILES[0], "block_n": 256}]
    check_all(WORKLOAD, problem, few(problem, variants(WORKLOAD, problem, on_cpu(), tiles), 1), MODES)


@pytest.mark.parametrize("epilogue", ["swiglu", "geglu", "geglu_tanh"])
def test_both_layouts_mean_the_same(epilogue: str) -> None:
    fields = {"m": 4, "n": 12, "k": 8, "world_size": 1, "epilogue": epilogue}
    gate, up = torch.randn(2, 4, 6)
    halves = reference(torch.cat([gate, up], dim=1), WORKLOAD.problem_type(**fields))
    turns = torch.stack([gate, up], dim=2).flatten(1)
    interleaved = reference(turns, WORKLOAD.problem_type(**fields, gate_up="interleaved"))
    assert torch.equal(halves, interleaved)
    assert not torch.allclose(halves, gate * up)


@ranks_a_gpu
@pytest.mark.parametrize(
    "fields",
    [
        {"m": 1024, "n": 7168, "k": 8192, "epilogue": "swiglu", "b_order": "nk"},
        {"m": 1024, "n": 3584, "k": 4096, "epilogue": "swiglu", "gate_up": "interleaved"},
        {"m": 1000, "n": 3600, "k": 4096, "epilogue": "swiglu"},
        {"m": 1024, "n": 3584, "k": 4096, "b_order": "nk", "gathered": True},
        {"m": 256, "n": 512, "k": 4096, "layout": "k", "gathered": True},
        {"m": 520, "n": 720, "k": 1024, "epilogue": "geglu", "b_order": "nk", "bias": True, "dtype": "fp16"},
        {"m": 64, "n": 512, "k": 2048, "epilogue": "geglu_tanh", "layout": "k", "b_order": "nk"},
        {"m": 512, "n": 1024, "k": 2048, "epilogue": "swiglu", "scales": "row", "bias": True, **FP8},
        {"m": 512, "n": 1280, "k": 2048, "epilogue": "swiglu", "scales": "block", **FP8},
        {"m": 1024, "n": 3584, "k": 4096, "epilogue": "swiglu", "b_order": "nk", "quantised": True},
        {"m": 500, "n": 1024, "k": 2048, "epilogue": "swiglu", "scales": "row", "quantised": True, **FP8},
    ],
    ids=lambda fields: "-".join(map(str, fields.values())),
)
def test_every_mode_is_right_on_gpus(ranks: int, fields: dict[str, Any]) -> None:
    here = machine()
    world_size = ranks * here.gpus
    problem = WORKLOAD.problem_type(world_size=world_size, **{**fields, "n": fields["n"] * world_size})
    modes = MODES - ({"pull"} if problem.gathered else set())
    check_all(WORKLOAD, problem, few(problem, variants(WORKLOAD, problem, here, GPU_TILES), 12), modes)
