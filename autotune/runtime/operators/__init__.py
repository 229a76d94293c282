"""Operators: one call runs a tuned kernel; the caller needs no knowledge of modes."""

from autotune.runtime.operators.all_gather_gemm import all_gather_gemm, all_gather_shard
from autotune.runtime.operators.flash_decode import flash_decode
from autotune.runtime.operators.gemm_all_reduce import gemm_all_reduce
from autotune.runtime.operators.gemm_reduce_scatter import gemm_reduce_scatter

__all__ = ["all_gather_gemm", "all_gather_shard", "flash_decode", "gemm_all_reduce", "gemm_reduce_scatter"]
