"""Operators: one call runs a tuned kernel; the caller needs no knowledge of modes.

All raise InvalidProblem where shapes, strides or types do not fit, HeapExhausted where the context's heap is too small,
and on the first call of a problem what ``lookup`` raises.
"""

from __future__ import annotations

import torch

from autotune.runtime.call import OPERATORS
from autotune.runtime.operators.decode import flash_decode
from autotune.runtime.operators.experts import moe_combine, moe_dispatch, moe_dispatch_gemm, moe_gemm_combine
from autotune.runtime.operators.gather import (
    all_gather_gemm,
    all_gather_gemm_quantised,
    all_gather_gemm_several,
    all_gather_gemm_with_gathered,
    all_gather_shard,
    side_by_side,
)
from autotune.runtime.operators.reduce import (
    all_reduce_norm,
    all_reduce_norm_quantised,
    gemm_all_reduce,
    gemm_all_reduce_norm,
    gemm_all_reduce_norm_quantised,
    gemm_reduce_scatter,
)

__all__ = [
    "all_gather_gemm",
    "all_gather_gemm_quantised",
    "all_gather_gemm_several",
    "all_gather_gemm_with_gathered",
    "all_gather_shard",
    "all_reduce_norm",
    "all_reduce_norm_quantised",
    "flash_decode",
    "gemm_all_reduce",
    "gemm_all_reduce_norm",
    "gemm_all_reduce_norm_quantised",
    "gemm_reduce_scatter",
    "moe_combine",
    "moe_dispatch",
    "moe_dispatch_gemm",
    "moe_gemm_combine",
    "side_by_side",
]


def in_graphs(name: str) -> torch._ops.OpOverload:
    """An operator as a compiled graph calls it, by its name: its workload's, or ``all_gather_gemm_gathered``."""
    found: torch._ops.OpOverload = OPERATORS[name].in_graphs
    return found
