"""Built-in operations in words for people: what is computed, and which libraries a baseline calls."""

from __future__ import annotations

from autotune.db import CacheKey
from autotune.text import visible

OPERATIONS = {
    "all_gather_gemm": "A @ B, where A is spread over the GPUs and each needs all of it for its columns of B",
    "gemm_reduce_scatter": "A @ B summed over the GPUs, where each keeps its share of the rows",
    "gemm_all_reduce": "A @ B summed over the GPUs, where each gets the whole sum",
    "gemm_all_reduce_norm": "A @ B summed over the GPUs, plus a residual, then RMS norm, on each of them",
    "all_reduce_norm": "a sum over the GPUs, plus a residual, then RMS norm, on each of them",
    "flash_decode": "attention of new tokens, where the KV cache is spread over the GPUs",
    "moe_dispatch": "tokens of a mixture of experts, sent to the GPUs of their experts and laid out by expert",
    "moe_dispatch_gemm": "tokens of a mixture of experts, sent to the GPUs of their experts and multiplied by weights",
    "moe_gemm_combine": "the experts' products, sent back to the GPUs of their tokens and summed for each token",
    "moe_combine": "the experts' results, sent back to the GPUs of their tokens and summed for each token",
}
"""What each computes."""

LIBRARIES = {
    "all_gather_gemm": ("NCCL", "cuBLAS"), "gemm_reduce_scatter": ("NCCL", "cuBLAS"),
    "gemm_all_reduce": ("NCCL", "cuBLAS"), "gemm_all_reduce_norm": ("NCCL", "cuBLAS", "torch"),
    "all_reduce_norm": ("NCCL", "torch"), "flash_decode": ("NCCL", "Triton attention"),
    "moe_dispatch": ("NCCL", "torch"), "moe_dispatch_gemm": ("NCCL", "torch"),
    "moe_gemm_combine": ("NCCL", "torch"), "moe_combine": ("NCCL", "torch"),
}  # fmt: skip
"""The libraries that each baseline ``bsp`` calls on NVIDIA's GPUs; NCCL stands first."""

ON_AMD = {"NCCL": "RCCL", "cuBLAS": "hipBLASLt"}

VARIANTS = {"counted": " (all-to-all)", "fused norm": " (sum and norm in one kernel)"}

GRAPH = " in a CUDA graph"


def libraries(key: CacheKey) -> tuple[str, ...]:
    """The libraries of the key's baselines; none for a user's own workload, whose baselines have names of its own."""
    found = () if key.is_kernel else LIBRARIES.get(key.workload, ())
    if found and key.is_interpreted:
        return ("torch",)
    return tuple(ON_AMD.get(each, each) for each in found) if key.arch.startswith("gfx") else found


def mode_name(key: CacheKey, mode: str) -> str:
    """A mode for people: the library's way by what it calls; empty for a kernel without modes."""
    return baseline_name(key, "bsp eager") if mode == "bsp" and libraries(key) else visible(mode)


def baseline_name(key: CacheKey, baseline: str) -> str:
    """``NCCL + cuBLAS`` for ``bsp eager``, ``NCCL + cuBLAS in a CUDA graph`` for ``bsp graph``."""
    called = " + ".join(libraries(key))
    way, _, launch = baseline.rpartition(" ")
    if not called or not way.startswith("bsp") or launch not in ("eager", "graph"):
        return visible(baseline)
    variant = way.removeprefix("bsp").strip()
    return called + VARIANTS.get(variant, f" ({visible(variant)})" if variant else "") + GRAPH * (launch == "graph")
