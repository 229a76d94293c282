"""A joint compute and communication autotuner for multi-GPU Triton and Iris kernels.

    config, source = autotune.lookup("all_gather_gemm", problem).config, …   the tuned config, and where it came from
    with autotune.Context() as context:                                      on every rank
        c = autotune.all_gather_gemm(context, a, b)                          one call, no knowledge of modes
    @autotune.autotune(configs, key=["M", "N", "K"])                         over your own @triton.jit, as Triton's

Importing this is cheap: torch, Triton, Optuna and SQLAlchemy are loaded when something needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.gate import FORKS_WAIT as _FORKS_WAIT

if TYPE_CHECKING:
    from autotune import nn as nn
    from autotune.compiled.collecting import collect
    from autotune.compiled.fusing import explain, fusing
    from autotune.config import Config
    from autotune.decorator import autotune
    from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
    from autotune.kernels.all_reduce_norm.problem import AllReduceNorm
    from autotune.kernels.flash_decode.problem import FlashDecode
    from autotune.kernels.gemm_all_reduce.problem import GemmAllReduce
    from autotune.kernels.gemm_all_reduce_norm.problem import GemmAllReduceNorm
    from autotune.kernels.gemm_reduce_scatter.problem import GemmReduceScatter
    from autotune.kernels.moe.histogram import recorded_histogram
    from autotune.kernels.moe_combine.problem import MoeCombine
    from autotune.kernels.moe_dispatch.problem import MoeDispatch
    from autotune.kernels.moe_dispatch_gemm.problem import MoeDispatchGemm
    from autotune.kernels.moe_gemm_combine.problem import MoeGemmCombine
    from autotune.runtime import symm_mem
    from autotune.runtime.context import Context
    from autotune.runtime.experts import moe_combine, moe_dispatch, moe_dispatch_gemm, moe_gemm_combine
    from autotune.runtime.in_program import tune
    from autotune.runtime.lookup import Found, forget_lookups, lookup
    from autotune.runtime.operators import (
        all_gather_gemm,
        all_gather_shard,
        all_reduce_norm,
        flash_decode,
        gemm_all_reduce,
        gemm_all_reduce_norm,
        gemm_reduce_scatter,
    )
    from autotune.runtime.several import side_by_side
    from autotune.sharing.by_size import configs_by_size

__all__ = [
    "AllGatherGemm",
    "AllReduceNorm",
    "Config",
    "Context",
    "FlashDecode",
    "Found",
    "GemmAllReduce",
    "GemmAllReduceNorm",
    "GemmReduceScatter",
    "MoeCombine",
    "MoeDispatch",
    "MoeDispatchGemm",
    "MoeGemmCombine",
    "all_gather_gemm",
    "all_gather_shard",
    "all_reduce_norm",
    "autotune",
    "collect",
    "configs_by_size",
    "explain",
    "flash_decode",
    "forget_lookups",
    "fusing",
    "gemm_all_reduce",
    "gemm_all_reduce_norm",
    "gemm_reduce_scatter",
    "lookup",
    "moe_combine",
    "moe_dispatch",
    "moe_dispatch_gemm",
    "moe_gemm_combine",
    "recorded_histogram",
    "side_by_side",
    "symm_mem",
    "tune",
]

_HOMES = {
    "AllGatherGemm": "autotune.kernels.all_gather_gemm.problem",
    "AllReduceNorm": "autotune.kernels.all_reduce_norm.problem",
    "Config": "autotune.config",
    "Context": "autotune.runtime.context",
    "FlashDecode": "autotune.kernels.flash_decode.problem",
    "Found": "autotune.runtime.lookup",
    "GemmAllReduce": "autotune.kernels.gemm_all_reduce.problem",
    "GemmAllReduceNorm": "autotune.kernels.gemm_all_reduce_norm.problem",
    "GemmReduceScatter": "autotune.kernels.gemm_reduce_scatter.problem",
    "MoeCombine": "autotune.kernels.moe_combine.problem",
    "MoeDispatch": "autotune.kernels.moe_dispatch.problem",
    "MoeDispatchGemm": "autotune.kernels.moe_dispatch_gemm.problem",
    "MoeGemmCombine": "autotune.kernels.moe_gemm_combine.problem",
    "all_gather_gemm": "autotune.runtime.operators",
    "all_gather_shard": "autotune.runtime.operators",
    "all_reduce_norm": "autotune.runtime.operators",
    "autotune": "autotune.decorator",
    "collect": "autotune.compiled.collecting",
    "configs_by_size": "autotune.sharing.by_size",
    "explain": "autotune.compiled.fusing",
    "flash_decode": "autotune.runtime.operators",
    "forget_lookups": "autotune.runtime.lookup",
    "fusing": "autotune.compiled.fusing",
    "gemm_all_reduce": "autotune.runtime.operators",
    "gemm_all_reduce_norm": "autotune.runtime.operators",
    "gemm_reduce_scatter": "autotune.runtime.operators",
    "lookup": "autotune.runtime.lookup",
    "moe_combine": "autotune.runtime.experts",
    "moe_dispatch": "autotune.runtime.experts",
    "moe_dispatch_gemm": "autotune.runtime.experts",
    "moe_gemm_combine": "autotune.runtime.experts",
    "recorded_histogram": "autotune.kernels.moe.histogram",
    "side_by_side": "autotune.runtime.several",
    "symm_mem": "autotune.runtime",
    "tune": "autotune.runtime.in_program",
}

_MODULES = ("symm_mem",)
"""Public names that are modules of their own."""


def __getattr__(name: str) -> Any:
    """Load a public name's module on first use."""
    import importlib

    with _FORKS_WAIT:
        if name == "nn":
            return importlib.import_module("autotune.nn")
        if name == "__version__":
            return importlib.import_module("importlib.metadata").version("iris-autotune")
        if name not in _HOMES:
            raise AttributeError(f"module 'autotune' has no attribute {name!r}; it has {', '.join(__all__)}")
        home = importlib.import_module(f"{_HOMES[name]}.{name}" if name in _MODULES else _HOMES[name])
        found = home if name in _MODULES else getattr(home, name)
        globals()[name] = found  # from now on without us: this is on the way of every call
        return found


def __dir__() -> list[str]:
    """Tab in a notebook also completes names that are loaded on first use."""
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__, "__version__"})
