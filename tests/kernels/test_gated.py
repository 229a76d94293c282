"""All-gather + GEMM with SwiGLU or GeGLU is right in every mode: see ``every_mode``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from every_mode import EveryModeTests, check_all, few, on_cpu, variants, whole
from gather_tiles import GPU_TILES, SMALL, WIDER

from autotune.kernels.all_gather_gemm.activation import reference
from autotune.machine import Machine
from autotune.workloads import workload

WORKLOAD = workload("all_gather_gemm")
FP8 = {"dtype": "fp8", "b_order": "nk"}
TILES = [SMALL, WIDER]

SOME: list[tuple[dict[str, Any], set[str]]] = [
    ({"m": 22, "n": 42, "k": 40, "epilogue": "geglu", "gate_up": "interleaved", "bias": True}, {"push", "pull"}),
    ({"m": 9, "n": 32, "k": 80, "epilogue": "geglu_tanh", "layout": "k", "dtype": "fp32"}, {"bsp", "pull_staged"}),
    ({"m": 10, "n": 48, "k": 64, "epilogue": "swiglu", "scales": "row", "bias": True, **FP8}, {"bsp", "pull"}),
]
"""With the two kernels, and with the library, behind which there is one; n per rank."""


class TestGated(EveryModeTests):
    name = "all_gather_gemm"
    modes = {"bsp", "pull", "pull_staged", "push", "custom_collective"}
    shared_out = ("n",)
    steps = TILES
    gpu_steps = GPU_TILES
    gpu_count = 12
    small = [
        (2, {"m": 10, "n": 32, "k": 64, "epilogue": "swiglu", "bias": True, "gathered": True}, 1),
        (2, {"m": 54, "n": 256, "k": 64, "epilogue": "swiglu", "scales": "row", "quantised": True, **FP8}, 1),
        *((2, fields, modes) for fields, modes in SOME),
        *(whole(2, fields, 1) for fields, _ in SOME),
        whole(2, {"m": 22, "n": 42, "k": 72, "epilogue": "swiglu", "b_order": "nk", "dtype": "fp16"}, 1),
        whole(2, {"m": 10, "n": 160, "k": 256, "epilogue": "swiglu", "scales": "block", **FP8}, 1),
        whole(2, {"m": 32, "n": 32, "k": 64, "epilogue": "swiglu", "bias": True, "gathered": True}, 1),
        whole(2, {"m": 10, "n": 512, "k": 64, "epilogue": "swiglu", "bias": True, "quantised": True}, 1),
    ]
    large = [
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
    ]

    def steps_of(self, problem: Any, steps: list[dict[str, int]]) -> list[dict[str, int]]:
        return [{**SMALL, "block_n": 256}] if problem.quantised and steps is self.steps else steps

    def modes_of(self, problem: Any, here: Machine) -> set[str]:
        return self.modes - ({"pull"} if problem.gathered else set())


KINDS = [
    {},
    whole({"dtype": "fp32", "m": 32, "k": 72}),
    whole({"dtype": "fp16", "layout": "k"}),
    whole({"b_order": "nk"}),
]


@pytest.mark.parametrize("fields", [*KINDS, whole({"b_order": "nk", "dtype": "fp32"})], ids=str)
def test_halves_are_right_by_tma_where_it_is_valid(fields: dict[str, Any]) -> None:
    """However wide a rank's B is: its rows, their halves and C's rows are multiples of 16 bytes, or there is no TMA."""
    sizes = {"m": 10, "k": 64, "b_order": "kn", "out_dtype": "fp32", "bias": True, "world_size": 2}
    by_tma = set()
    for width in (20, 24, 40, 48, 50):
        problem = WORKLOAD.problem_type(**sizes | fields, n=2 * width, epilogue="swiglu")
        configs = [each for each in variants(WORKLOAD, problem, on_cpu(), TILES) if each.get("loads") == "tma"]
        check_all(WORKLOAD, problem, few(problem, configs, 1), set())
        by_tma |= {(width, each["mode"]) for each in configs}
    assert by_tma >= {(48, "push"), (48, "pull_staged")}


@pytest.mark.parametrize("epilogue", ["swiglu", "geglu", "geglu_tanh"])
def test_both_layouts_mean_the_same(epilogue: str) -> None:
    fields = {"m": 4, "n": 12, "k": 8, "world_size": 1, "epilogue": epilogue}
    gate, up = torch.randn(2, 4, 6)
    halves = reference(torch.cat([gate, up], dim=1), WORKLOAD.problem_type(**fields))
    turns = torch.stack([gate, up], dim=2).flatten(1)
    interleaved = reference(turns, WORKLOAD.problem_type(**fields, gate_up="interleaved"))
    assert torch.equal(halves, interleaved)
    assert not torch.allclose(halves, gate * up)
