"""All-reduce + residual + RMSNorm is right in every mode: see ``every_mode``."""

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
