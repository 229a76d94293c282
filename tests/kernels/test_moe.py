"""Mixtures of experts are right in every mode: see ``mixture``."""

from __future__ import annotations

import random
from typing import Any

import pytest
from compile_worker import DEADLINE, Compilers, assembly
from every_mode import check_all, few, on_cpu, variants, whole
from mixture import FP8, GroupedTests, MixtureTests, sent

from autotune.machine import H100
from autotune.task import Task
from autotune.workloads import workload

DISPATCH = workload("moe_dispatch_gemm")


class TestMoeDispatch(MixtureTests):
    name = "moe_dispatch"
    modes = {"bsp", "push", "pull"}
    count = 3

    steps = [
        {**sent(2, 2, 1, 1), "layout_rows": 4, "num_warps": 4},
        {**sent(1, 4, 2, 1), "layout_rows": 1, "num_warps": 4},
        {**sent(1, 1, 1, 2), "layout_rows": 2, "num_warps": 8},
    ]
    gpu_steps = [
        {**sent(16, 1, 4, 2), "layout_rows": 1, "num_warps": 8},
        {**sent(32, 8, 1, 16), "layout_rows": 4, "num_warps": 8},
        {**sent(8, 16, 2, 8), "layout_rows": 2, "num_warps": 16},
        {**sent(1, 1, 1, 4), "layout_rows": 1, "num_warps": 4},
    ]
    small = [
        (1, {"tokens": 5, "hidden": 72, "experts": 3, "top_k": 2, "dtype": "fp32"}, 3),
        (2, {"tokens": 5, "hidden": 72, "experts": 4, "top_k": 2, "routing": "zipf", "exponent": 1.0}, 4),
        (3, {"tokens": 2, "hidden": 72, "experts": 3, "top_k": 1, "dtype": "fp16"}, {"push", "pull"}),
        (4, {"tokens": 1, "hidden": 64, "experts": 8, "top_k": 2}, {"push", "pull"}),
        (2, {"tokens": 3, "hidden": 33 * 128, "experts": 4, "top_k": 2, "dtype": "fp8", "scales": "block"}, 3),
        whole(2, {"tokens": 9, "hidden": 80, "experts": 8, "top_k": 3, "dtype": "fp8", "scales": "row"}, 6),
    ]
    large = [
        {"tokens": 1, "hidden": 7168, "experts": 64, "top_k": 8},
        {"tokens": 128, "hidden": 7168, "experts": 64, "top_k": 8, "routing": "zipf", "exponent": 1.0},
        {"tokens": 1000, "hidden": 2048, "experts": 8, "top_k": 2, "dtype": "fp16"},
        {"tokens": 333, "hidden": 2888, "experts": 16, "top_k": 1, "dtype": "fp32"},
        {"tokens": 2, "hidden": 7168, "experts": 64, "top_k": 8, "dtype": "fp8", "scales": "row"},
        {"tokens": 500, "hidden": 2048, "experts": 16, "top_k": 4, "dtype": "fp8", "scales": "block"},
    ]


class TestMoeCombine(MixtureTests):
    name = "moe_combine"
    modes = {"bsp", "push", "pull", "one_shot"}

    steps = [
        {**sent(2, 2, 1, 1), "num_warps": 4},
        {**sent(1, 4, 2, 1), "num_warps": 4},
        {**sent(2, 1, 1, 2), "num_warps": 8},
        {**sent(1, 1, 1, 1), "num_warps": 4},
    ]
    gpu_steps = [
        {**sent(16, 1, 4, 2), "num_warps": 8},
        {**sent(64, 8, 1, 16), "num_warps": 8},
        {**sent(128, 4, 2, 8), "num_warps": 16},
        {**sent(2, 1, 1, 4), "num_warps": 4},
        {**sent(1, 1, 1, 1), "num_warps": 4},
    ]
    small = [
        (1, {"tokens": 5, "hidden": 72, "experts": 3, "top_k": 2, "dtype": "fp32", "deterministic": True}, 4),
        (2, {"tokens": 5, "hidden": 72, "experts": 4, "top_k": 2, "routing": "zipf", "exponent": 1.0}, 4),
        (3, {"tokens": 2, "hidden": 72, "experts": 3, "top_k": 1, "dtype": "fp16"}, {"push", "pull", "one_shot"}),
        (4, {"tokens": 1, "hidden": 64, "experts": 8, "top_k": 2}, {"push", "one_shot"}),
    ]
    large = [
        {"tokens": 1, "hidden": 7168, "experts": 64, "top_k": 8},
        {"tokens": 128, "hidden": 7168, "experts": 64, "top_k": 8, "routing": "zipf", "exponent": 1.0},
        {"tokens": 1000, "hidden": 2048, "experts": 8, "top_k": 2, "dtype": "fp16"},
        {"tokens": 333, "hidden": 2888, "experts": 16, "top_k": 1, "dtype": "fp32", "deterministic": True},
    ]

    def further(self, rng: random.Random, gpu: bool) -> dict[str, Any]:
        return {"deterministic": rng.random() < 0.5}


LAYOUT = {"layout_rows": 2, "layout_warps": 4}
DISPATCH_TILE = {
    "block_m": 16, "block_n": 32, "block_k": 32, "group_m": 1, "num_warps": 4, "num_stages": 2, **LAYOUT,
}  # fmt: skip
WIDE = {**LAYOUT, "block_m": 128, "block_n": 128, "block_k": 64, "group_m": 4, "num_warps": 8, "num_stages": 3}
FLAT = {**LAYOUT, "block_m": 16, "block_n": 128, "block_k": 128, "group_m": 1, "num_warps": 4, "num_stages": 4}


class TestMoeDispatchGemm(GroupedTests):
    name = "moe_dispatch_gemm"
    modes = {"bsp", "custom_collective", "unfused", "push", "pull"}
    count = 3
    local_experts = [1, 2, 5]
    hidden = [64, 72, 128]
    fp8_sizes = {"hidden": 256, "width": 72}
    fp8_forms = [{"gate_up": "halves"}, {"gate_up": "interleaved"}]

    # fmt: off
    steps = [
        {**DISPATCH_TILE, **sent(2, 2, 1, 1), "programs_per_unit": 1},
        {**DISPATCH_TILE, **sent(1, 4, 2, 1), "programs_per_unit": 2, "group_m": 2},
        {**DISPATCH_TILE, **sent(1, 1, 1, 2), "programs_per_unit": 1},
    ]
    gpu_steps = [
        {**FLAT, **sent(16, 1, 4, 2), "programs_per_unit": 2},
        {**WIDE, **sent(16, 8, 1, 16), "programs_per_unit": 1},
        {**WIDE, "block_m": 64, **sent(8, 16, 2, 8), "programs_per_unit": 1},
        {**FLAT, "block_m": 32, **sent(1, 1, 1, 4), "programs_per_unit": 1, "block_k": 64, "block_n": 64},
        {**FLAT, **sent(1, 1, 1, 4), "programs_per_unit": 1},
    ]
    small = [
        (2, {"tokens": 5, "hidden": 40, "experts": 4, "top_k": 2, "width": 24, "b_order": "kn", "dtype": "fp32",
             "routing": "zipf", "exponent": 1.0}, 3),
        (3, {"tokens": 2, "hidden": 40, "experts": 3, "top_k": 1, "width": 40, "epilogue": "none", "bias": True},
         {"custom_collective", "push", "unfused"}),
        (4, {"tokens": 1, "hidden": 40, "experts": 8, "top_k": 2, "width": 24, "dtype": "fp16",
             "gate_up": "interleaved", "epilogue": "swiglu_oai", "bias": True}, {"bsp", "push", "pull"}),
        (2, {"tokens": 9, "hidden": 48, "experts": 2, "top_k": 1, "width": 32, **FP8, "scales": "row"}, 3),
        whole(1, {"tokens": 5, "hidden": 72, "experts": 2, "top_k": 2, "width": 40, "bias": True}, 3),
    ]
    large = [
        {"tokens": 1, "hidden": 7168, "experts": 64, "top_k": 8, "width": 2048},
        {"tokens": 128, "hidden": 7168, "experts": 64, "top_k": 8, "width": 2048, "routing": "zipf", "exponent": 1.0},
        {"tokens": 1000, "hidden": 2048, "experts": 8, "top_k": 2, "width": 1024, "dtype": "fp16", "b_order": "kn"},
        {"tokens": 333, "hidden": 1160, "experts": 16, "top_k": 1, "width": 328, "epilogue": "none", "bias": True},
        {"tokens": 64, "hidden": 2880, "experts": 128, "top_k": 4, "width": 2880, "gate_up": "interleaved",
         "epilogue": "swiglu_oai", "bias": True},
        {"tokens": 1, "hidden": 7168, "experts": 32, "top_k": 8, "width": 2048, **FP8, "scales": "row"},
        {"tokens": 600, "hidden": 2048, "experts": 8, "top_k": 2, "width": 1040, **FP8, "scales": "row"},
        {"tokens": 333, "hidden": 1024, "experts": 16, "top_k": 4, "width": 584, **FP8, "scales": "block"},
    ]
    # fmt: on

    def further(self, rng: random.Random, gpu: bool) -> dict[str, Any]:
        gated = rng.choice(
            [{"epilogue": "none"}, {"gate_up": "halves"}, {"gate_up": "interleaved"}, {"epilogue": "swiglu_oai"}]
        )
        widths = [64, 200, 1024] if gpu else [24, 40, 64]
        return {"width": rng.choice(widths), "b_order": rng.choice(["kn", "nk"]), "bias": rng.random() < 0.3, **gated}

    def test_tiles_of_own_tokens_come_first_and_all_tiles_come(self) -> None:
        """More tokens than a tile has, so that some tiles are of own tokens alone, some of others', some of both."""
        here, steps = on_cpu(), [{**self.steps[0], "transfer_tokens": 8, "comm_programs": 1, "group_m": 2}]
        problem = self.problem(tokens=41, hidden=64, experts=4, top_k=1, width=32, epilogue="none", world_size=2)
        found = [each for each in variants(DISPATCH, problem, here, steps) if each.get("tile_order") == "own_first"]
        check_all(DISPATCH, problem, few(problem, found, 2), {"push", "pull"})


COMBINE_TILE = {
    "block_m": 16, "block_n": 32, "block_k": 32, "group_m": 2, "num_warps": 4, "num_stages": 2, "sum_warps": 4,
}  # fmt: skip
FEW = {"sum_warps": 8, "block_m": 16, "block_n": 128, "block_k": 128, "group_m": 1, "num_warps": 4, "num_stages": 4}
MANY = {"sum_warps": 8, "block_m": 128, "block_n": 128, "block_k": 64, "group_m": 8, "num_warps": 8, "num_stages": 3}


class TestMoeGemmCombine(GroupedTests):
    name = "moe_gemm_combine"
    modes = {"bsp", "custom_collective", "unfused", "push", "pull", "one_shot"}
    gpu_hidden = [64, 72, 2048]
    fp8_sizes = {"hidden": 208, "width": 256}

    # fmt: off
    steps = [
        {**COMBINE_TILE, **sent(2, 2, 1, 1), "column_groups": 2, "programs_per_unit": 1},
        {**COMBINE_TILE, **sent(1, 4, 2, 1), "column_groups": 1, "programs_per_unit": 2},
        {**COMBINE_TILE, **sent(2, 1, 1, 1), "column_groups": 4, "programs_per_unit": 1},
        {**COMBINE_TILE, **sent(1, 1, 1, 1), "column_groups": 1, "programs_per_unit": 1},
    ]
    gpu_steps = [
        {**FEW, **sent(16, 1, 4, 2), "column_groups": 1, "programs_per_unit": 2},
        {**MANY, **sent(16, 8, 1, 16), "column_groups": 4, "programs_per_unit": 1},
        {**MANY, **sent(32, 4, 2, 8), "column_groups": 8, "programs_per_unit": 1},
        {**FEW, **sent(2, 1, 1, 4), "column_groups": 2, "programs_per_unit": 1},
        {**COMBINE_TILE, **sent(1, 1, 1, 1), "column_groups": 1, "programs_per_unit": 1},
    ]
    small = [
        (2, {"tokens": 3, "hidden": 40, "experts": 4, "top_k": 2, "width": 40, "b_order": "kn", "dtype": "fp32",
             "bias": True}, 4),
        (3, {"tokens": 2, "hidden": 40, "experts": 3, "top_k": 1, "width": 32, "dtype": "fp16", "bias": True},
         {"push", "pull", "one_shot"}),
        (4, {"tokens": 1, "hidden": 40, "experts": 8, "top_k": 2, "width": 40, "deterministic": True},
         {"push", "one_shot"}),
        (2, {"tokens": 3, "hidden": 144, "experts": 4, "top_k": 2, "width": 256, **FP8, "scales": "block"}, 4),
        whole(1, {"tokens": 5, "hidden": 72, "experts": 3, "top_k": 2, "width": 40}, 4),
    ]
    # fmt: on
    large = [
        {"tokens": 1, "hidden": 7168, "experts": 32, "top_k": 8, "width": 2048},
        {"tokens": 128, "hidden": 7168, "experts": 32, "top_k": 8, "width": 2048, "routing": "zipf", "exponent": 1.0},
        {"tokens": 1000, "hidden": 2048, "experts": 8, "top_k": 2, "width": 1024, "b_order": "kn", "dtype": "fp16"},
        {"tokens": 333, "hidden": 2888, "experts": 16, "top_k": 1, "width": 520, "dtype": "fp32"},
        {"tokens": 64, "hidden": 2880, "experts": 128, "top_k": 4, "width": 2880, "bias": True},
        {"tokens": 1, "hidden": 7168, "experts": 32, "top_k": 8, "width": 2048, **FP8, "scales": "row"},
        {"tokens": 600, "hidden": 2064, "experts": 8, "top_k": 2, "width": 1024, **FP8, "scales": "row"},
        {"tokens": 333, "hidden": 1040, "experts": 16, "top_k": 4, "width": 512, **FP8, "scales": "block"},
    ]

    def further(self, rng: random.Random, gpu: bool) -> dict[str, Any]:
        order = rng.choice(["kn", "nk"])
        flags = {name: rng.random() < 0.5 for name in ("deterministic", "bias")}
        return {"width": rng.choice([32, 72, 128]), "b_order": order, **flags}


SPLIT: dict[str, dict[str, int]] = {
    "moe_dispatch_gemm": {}, "moe_combine": {"split": 2}, "moe_gemm_combine": {"split": 2, "column_groups": 4},
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("moe_dispatch_gemm", "push"), ("moe_combine", "pull"), ("moe_gemm_combine", "push"),
        whole("moe_dispatch_gemm", "pull"), whole("moe_combine", "push"), whole("moe_gemm_combine", "pull"),
    ],
)  # fmt: skip
def test_rows_are_loaded_by_whole_vectors(name: str, mode: str, compilers: Compilers) -> None:
    """On NVIDIA's GPUs: a rank's own tokens and others' in the inbox, ahead of the GEMM; sums after a wait, of which
    the compiler must still know where a step's columns begin.
    """
    found, sizes = workload(name), {"tokens": 1024, "hidden": 7168, "experts": 256, "top_k": 8, "world_size": 8}
    task = Task(found.problem_type(**sizes, **({"width": 2048} if "gemm" in name else {})), H100)
    first = next(config for config in found.first_configs(task) if config["mode"] == mode)
    config = first.replace(**SPLIT[name])
    found.space.check(config, task)
    (text,) = compilers.submit(H100, assembly, task, config).result(DEADLINE)
    assert "ld.global.b16" not in text
    assert "cp.async.cg.shared.global" in text if name == "moe_dispatch_gemm" else "st.global.b16" not in text
