"""Operators: one call runs a tuned kernel; the caller needs no knowledge of modes.

All raise InvalidProblem where shapes, strides or types do not fit, HeapExhausted where the context's heap is too small,
and on the first call of a problem what ``lookup`` raises.
"""

from autotune.runtime.operators.decode import flash_decode as flash_decode
from autotune.runtime.operators.experts import moe_combine as moe_combine
from autotune.runtime.operators.experts import moe_dispatch as moe_dispatch
from autotune.runtime.operators.experts import moe_dispatch_gemm as moe_dispatch_gemm
from autotune.runtime.operators.experts import moe_gemm_combine as moe_gemm_combine
from autotune.runtime.operators.gather import all_gather_gemm as all_gather_gemm
from autotune.runtime.operators.gather import all_gather_gemm_quantised as all_gather_gemm_quantised
from autotune.runtime.operators.gather import all_gather_gemm_several as all_gather_gemm_several
from autotune.runtime.operators.gather import all_gather_gemm_with_gathered as all_gather_gemm_with_gathered
from autotune.runtime.operators.gather import all_gather_shard as all_gather_shard
from autotune.runtime.operators.gather import side_by_side as side_by_side
from autotune.runtime.operators.reduce import all_reduce_norm as all_reduce_norm
from autotune.runtime.operators.reduce import all_reduce_norm_quantised as all_reduce_norm_quantised
from autotune.runtime.operators.reduce import gemm_all_reduce as gemm_all_reduce
from autotune.runtime.operators.reduce import gemm_all_reduce_norm as gemm_all_reduce_norm
from autotune.runtime.operators.reduce import gemm_all_reduce_norm_quantised as gemm_all_reduce_norm_quantised
from autotune.runtime.operators.reduce import gemm_reduce_scatter as gemm_reduce_scatter
