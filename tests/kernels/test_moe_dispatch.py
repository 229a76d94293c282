"""The dispatch is right in every mode: see ``mixture``."""

from __future__ import annotations

from every_mode import whole
from mixture import MixtureTests, sent


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
        whole(3, {"tokens": 5, "hidden": 384, "experts": 3, "top_k": 1, "dtype": "fp8", "scales": "block"}, 6),
        whole(3, {"tokens": 4, "hidden": 200, "experts": 3, "top_k": 1, "dtype": "fp16"}, 3),
    ]
    large = [
        {"tokens": 1, "hidden": 7168, "experts": 64, "top_k": 8},
        {"tokens": 128, "hidden": 7168, "experts": 64, "top_k": 8, "routing": "zipf", "exponent": 1.0},
        {"tokens": 1000, "hidden": 2048, "experts": 8, "top_k": 2, "dtype": "fp16"},
        {"tokens": 333, "hidden": 2888, "experts": 16, "top_k": 1, "dtype": "fp32"},
        {"tokens": 2, "hidden": 7168, "experts": 64, "top_k": 8, "dtype": "fp8", "scales": "row"},
        {"tokens": 500, "hidden": 2048, "experts": 16, "top_k": 4, "dtype": "fp8", "scales": "block"},
    ]
