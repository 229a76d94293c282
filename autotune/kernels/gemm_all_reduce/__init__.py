"""GEMM + all-reduce: the problem, its device code and its launchers."""
