"""GEMM + reduce-scatter: the problem, its device code and its launchers."""
