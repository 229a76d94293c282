"""All-reduce + residual + RMSNorm is right in every mode, alone and behind a GEMM: see ``every_mode``."""

from typing import Any

from every_mode import EveryModeTests, whole


class TestAllReduceNorm(EveryModeTests):
    name = "all_reduce_norm"
    modes = {"bsp", "library_collective", "one_shot", "two_shot"}
    gpu_count = 24

    steps = [
        {"norm_rows": 1, "norm_warps": 1, "senders": 0},
        {"norm_rows": 2, "norm_warps": 4, "senders": 2},
        {"norm_rows": 4, "norm_warps": 2, "senders": 0},
        {"norm_rows": 1, "norm_warps": 2, "senders": 4},
        {"norm_rows": 1, "norm_warps": 32, "senders": 1},
    ]
    gpu_steps = [
        {"norm_rows": 1, "norm_warps": 8, "senders": 0},
        {"norm_rows": 1, "norm_warps": 16, "senders": 4},
        {"norm_rows": 2, "norm_warps": 16, "senders": 1},
        {"norm_rows": 1, "norm_warps": 4, "senders": 8},
    ]
    small = [
        (1, {"m": 3, "n": 64, "dtype": "fp16"}, 2),
        (2, {"m": 5, "n": 520}, 4),
        (3, {"m": 4, "n": 264, "dtype": "fp32", "eps": 1e-2}, 4),
        (2, {"m": 3, "n": 64, "in_place": True}, 2),
        (4, {"m": 1, "n": 1024, "dtype": "fp16"}, 4),
        (3, {"m": 2, "n": 16384}, 4),  # LL words are polled in turns, see primitives/all_reduce.py
        (2, {"m": 5, "n": 384, "quantised": "block"}, 4),
        (2, {"m": 3, "n": 520, "dtype": "fp32", "quantised": "row"}, 2),
        whole(2, {"m": 5, "n": 520}, 12),
        whole(5, {"m": 1, "n": 8192}, 4),  # two at a time, the last one without a partner
        whole(3, {"m": 7, "n": 264, "dtype": "fp32", "eps": 1e-2}, 8),
    ]
    large = [
        {"m": 16, "n": 8192},
        {"m": 1, "n": 5120, "dtype": "fp16"},
        {"m": 300, "n": 4096, "dtype": "fp32"},
        {"m": 17, "n": 7168, "quantised": "block"},
        {"m": 64, "n": 4096, "quantised": "row"},
    ]


NUMBERS = {"group_m": 2, "num_stages": 2, "programs_per_unit": 1, "num_warps": 4}
ON_GPUS = {**NUMBERS, "norm_rows": 1, "norm_warps": 16}
FP8 = {"dtype": "fp8", "scales": "row", "b_order": "nk"}


class TestGemmAllReduceNorm(EveryModeTests):
    name = "gemm_all_reduce_norm"
    modes = {"bsp", "library_collective", "custom_collective", "one_shot", "two_shot"}
    shared_out = ("k",)
    gpu_count = 24

    # fmt: off
    steps = [
        {**NUMBERS, "block_m": 16, "block_n": 32, "block_k": 32, "split_k": 2, "norm_rows": 1, "norm_warps": 1,
         "senders": 0},
        {**NUMBERS, "block_m": 16, "block_n": 64, "block_k": 32, "split_k": 1, "norm_rows": 2, "norm_warps": 2,
         "senders": 2},
    ]
    gpu_steps = [
        {**ON_GPUS, "block_m": 16, "block_n": 64, "block_k": 128, "split_k": 4, "num_stages": 4, "senders": 4},
        {**ON_GPUS, "block_m": 64, "block_n": 64, "block_k": 64, "split_k": 1, "senders": 0},
    ]
    # fmt: on
    small = [
        (2, {"m": 17, "n": 24, "k": 40, "bias": True, "b_order": "nk", "eps": 1e-2}, 5),
        (3, {"m": 5, "n": 24, "k": 24, "dtype": "fp32"}, 3),
        (2, {"m": 4, "n": 96, "k": 64, **FP8}, 3),
        (2, {"m": 5, "n": 128, "k": 40, "quantised": "block"}, 2),
        (1, {"m": 3, "n": 128, "k": 64, "deterministic": True}, 2),
        whole(2, {"m": 5, "n": 72, "k": 40, "bias": True, "b_order": "nk", "eps": 1e-2}, 16),
        whole(3, {"m": 17, "n": 40, "k": 40, "dtype": "fp32"}, 6),
    ]
    large = [
        {"m": 16, "n": 8192, "k": 8192},
        {"m": 1, "n": 5120, "k": 2880, "dtype": "fp16", "bias": True},
        {"m": 64, "n": 8192, "k": 8192, **FP8},
        {"m": 200, "n": 4096, "k": 1024, "dtype": "fp32"},
    ]

    def steps_of(self, problem: Any, steps: list[dict[str, int]]) -> list[dict[str, int]]:
        return steps  # large tiles of few rows, too
