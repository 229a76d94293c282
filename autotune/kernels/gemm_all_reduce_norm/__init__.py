"""GEMM + all-reduce + residual + RMSNorm: the problem and its launches, made of the kernels of its two parts."""
