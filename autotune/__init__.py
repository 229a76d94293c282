"""A joint compute and communication autotuner for multi-GPU Triton and Iris kernels.

    config, source = autotune.lookup("all_gather_gemm", problem).config, …   the tuned config, and where it came from
    with autotune.Context() as context:                                      on every rank
        c = autotune.all_gather_gemm(context, a, b)                          one call, no knowledge of modes
    @autotune.autotune(configs, key=["M", "N", "K"])                         over your own @triton.jit, as Triton's

Importing this is cheap: torch, Triton, Optuna and SQLAlchemy are loaded when something needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.forks import FORKS_WAIT as _FORKS_WAIT

if TYPE_CHECKING:
    from autotune import nn as nn
    from autotune.compiled.collecting import collect as collect
    from autotune.compiled.fusing import explain as explain
    from autotune.compiled.fusing import fusing as fusing
    from autotune.config import Config as Config
    from autotune.decorator import autotune as autotune
    from autotune.kernels.all_gather_gemm.problem import AllGatherGemm as AllGatherGemm
    from autotune.kernels.all_reduce_norm.problem import AllReduceNorm as AllReduceNorm
    from autotune.kernels.flash_decode.problem import FlashDecode as FlashDecode
    from autotune.kernels.gemm_all_reduce.problem import GemmAllReduce as GemmAllReduce
    from autotune.kernels.gemm_all_reduce_norm.problem import GemmAllReduceNorm as GemmAllReduceNorm
    from autotune.kernels.gemm_reduce_scatter.problem import GemmReduceScatter as GemmReduceScatter
    from autotune.kernels.moe.histogram import recorded_histogram as recorded_histogram
    from autotune.kernels.moe_combine.problem import MoeCombine as MoeCombine
    from autotune.kernels.moe_dispatch.problem import MoeDispatch as MoeDispatch
    from autotune.kernels.moe_dispatch_gemm.problem import MoeDispatchGemm as MoeDispatchGemm
    from autotune.kernels.moe_gemm_combine.problem import MoeGemmCombine as MoeGemmCombine
    from autotune.runtime import symm_mem as symm_mem
    from autotune.runtime.context import Context as Context
    from autotune.runtime.in_program import tune as tune
    from autotune.runtime.lookup import Found as Found
    from autotune.runtime.lookup import forget_lookups as forget_lookups
    from autotune.runtime.lookup import lookup as lookup
    from autotune.runtime.operators import all_gather_gemm as all_gather_gemm
    from autotune.runtime.operators import all_gather_gemm_quantised as all_gather_gemm_quantised
    from autotune.runtime.operators import all_gather_gemm_several as all_gather_gemm_several
    from autotune.runtime.operators import all_gather_gemm_with_gathered as all_gather_gemm_with_gathered
    from autotune.runtime.operators import all_gather_shard as all_gather_shard
    from autotune.runtime.operators import all_reduce_norm as all_reduce_norm
    from autotune.runtime.operators import all_reduce_norm_quantised as all_reduce_norm_quantised
    from autotune.runtime.operators import flash_decode as flash_decode
    from autotune.runtime.operators import gemm_all_reduce as gemm_all_reduce
    from autotune.runtime.operators import gemm_all_reduce_norm as gemm_all_reduce_norm
    from autotune.runtime.operators import gemm_all_reduce_norm_quantised as gemm_all_reduce_norm_quantised
    from autotune.runtime.operators import gemm_reduce_scatter as gemm_reduce_scatter
    from autotune.runtime.operators import moe_combine as moe_combine
    from autotune.runtime.operators import moe_dispatch as moe_dispatch
    from autotune.runtime.operators import moe_dispatch_gemm as moe_dispatch_gemm
    from autotune.runtime.operators import moe_gemm_combine as moe_gemm_combine
    from autotune.runtime.operators import side_by_side as side_by_side
    from autotune.sharing.by_size import configs_by_size as configs_by_size

_HOMES = {
    name: home
    for home, names in {
        "autotune.compiled.collecting": "collect",
        "autotune.compiled.fusing": "explain fusing",
        "autotune.config": "Config",
        "autotune.decorator": "autotune",
        "autotune.kernels.all_gather_gemm.problem": "AllGatherGemm",
        "autotune.kernels.all_reduce_norm.problem": "AllReduceNorm",
        "autotune.kernels.flash_decode.problem": "FlashDecode",
        "autotune.kernels.gemm_all_reduce.problem": "GemmAllReduce",
        "autotune.kernels.gemm_all_reduce_norm.problem": "GemmAllReduceNorm",
        "autotune.kernels.gemm_reduce_scatter.problem": "GemmReduceScatter",
        "autotune.kernels.moe.histogram": "recorded_histogram",
        "autotune.kernels.moe_combine.problem": "MoeCombine",
        "autotune.kernels.moe_dispatch.problem": "MoeDispatch",
        "autotune.kernels.moe_dispatch_gemm.problem": "MoeDispatchGemm",
        "autotune.kernels.moe_gemm_combine.problem": "MoeGemmCombine",
        "autotune.runtime.context": "Context",
        "autotune.runtime.in_program": "tune",
        "autotune.runtime.lookup": "Found forget_lookups lookup",
        "autotune.runtime.operators": (
            "all_gather_gemm all_gather_gemm_quantised all_gather_gemm_several all_gather_gemm_with_gathered "
            "all_gather_shard all_reduce_norm all_reduce_norm_quantised flash_decode gemm_all_reduce "
            "gemm_all_reduce_norm gemm_all_reduce_norm_quantised gemm_reduce_scatter moe_combine moe_dispatch "
            "moe_dispatch_gemm moe_gemm_combine side_by_side"
        ),
        "autotune.sharing.by_size": "configs_by_size",
    }.items()
    for name in names.split()
}
"""The modules of public names."""

_MODULES = {"nn": "autotune.nn", "symm_mem": "autotune.runtime.symm_mem"}
"""Public names that are modules themselves."""

__all__ = sorted([*_HOMES, "symm_mem"])


def __getattr__(name: str) -> Any:
    """Load a public name's module on first use."""
    import importlib

    with _FORKS_WAIT:
        if name == "__version__":
            return importlib.import_module("importlib.metadata").version("iris-autotune")
        if name in _MODULES:
            found = importlib.import_module(_MODULES[name])
        elif name in _HOMES:
            found = getattr(importlib.import_module(_HOMES[name]), name)
        else:
            raise AttributeError(f"module 'autotune' has no attribute {name!r}; it has {', '.join(__all__)}")
        globals()[name] = found  # from now on without us: this is on the way of every call
        return found


def __dir__() -> list[str]:
    """Tab in a notebook also completes names that are loaded on first use."""
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__, "__version__"})
