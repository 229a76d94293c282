"""Dispatch + grouped GEMM is right in every mode: see ``mixture``."""

from __future__ import annotations

import random
from typing import Any

import pytest
from compile_worker import DEADLINE, Compilers, assembly
from every_mode import check_all, few, on_cpu, variants, whole
from mixture import FP8, GroupedTests, sent

from autotune.machine import H100
from autotune.task import Task
from autotune.workloads import workload

WORKLOAD = workload("moe_dispatch_gemm")

LAYOUT = {"layout_rows": 2, "layout_warps": 4}
TILE = {
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
        {**TILE, **sent(2, 2, 1, 1), "programs_per_unit": 1},
        {**TILE, **sent(1, 4, 2, 1), "programs_per_unit": 2, "group_m": 2},
        {**TILE, **sent(1, 1, 1, 2), "programs_per_unit": 1},
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
        whole(4, {"tokens": 1, "hidden": 64, "experts": 8, "top_k": 4, "width": 32, "dtype": "fp16",
                  "gate_up": "interleaved"}, 3),
        whole(2, {"tokens": 20, "hidden": 48, "experts": 2, "top_k": 1, "width": 32, **FP8, "scales": "row"}, 3),
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
        found = [each for each in variants(WORKLOAD, problem, here, steps) if each.get("tile_order") == "own_first"]
        check_all(WORKLOAD, problem, few(problem, found, 2), {"push", "pull"})


@pytest.mark.parametrize("mode", ["push", whole("pull")])
def test_tokens_are_gathered_ahead_and_by_whole_vectors(mode: str, compilers: Compilers) -> None:
    """On NVIDIA's GPUs, of a rank's own tokens and of others' in the inbox."""
    sizes = {"tokens": 1024, "hidden": 7168, "experts": 256, "top_k": 8, "width": 2048, "world_size": 8}
    problem = WORKLOAD.problem_type(**sizes)
    config = next(each for each in WORKLOAD.first_configs(Task(problem, H100)) if each["mode"] == mode)
    (text,) = compilers.submit(H100, assembly, Task(problem, H100), config).result(DEADLINE)
    assert "cp.async.cg.shared.global" in text and "ld.global.b16" not in text
