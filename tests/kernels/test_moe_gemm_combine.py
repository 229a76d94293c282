"""Grouped GEMM + combine is right in every mode: see ``mixture``."""

from __future__ import annotations

import random
from typing import Any

from every_mode import whole
from mixture import FP8, GroupedTests, sent

TILE = {
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
        {**TILE, **sent(2, 2, 1, 1), "column_groups": 2, "programs_per_unit": 1},
        {**TILE, **sent(1, 4, 2, 1), "column_groups": 1, "programs_per_unit": 2},
        {**TILE, **sent(2, 1, 1, 1), "column_groups": 4, "programs_per_unit": 1},
        {**TILE, **sent(1, 1, 1, 1), "column_groups": 1, "programs_per_unit": 1},
    ]
    gpu_steps = [
        {**FEW, **sent(16, 1, 4, 2), "column_groups": 1, "programs_per_unit": 2},
        {**MANY, **sent(16, 8, 1, 16), "column_groups": 4, "programs_per_unit": 1},
        {**MANY, **sent(32, 4, 2, 8), "column_groups": 8, "programs_per_unit": 1},
        {**FEW, **sent(2, 1, 1, 4), "column_groups": 2, "programs_per_unit": 1},
        {**TILE, **sent(1, 1, 1, 1), "column_groups": 1, "programs_per_unit": 1},
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
        whole(3, {"tokens": 2, "hidden": 72, "experts": 6, "top_k": 3, "width": 40, "dtype": "fp16"}, 4),
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
