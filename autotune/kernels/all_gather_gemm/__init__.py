"""All-gather + GEMM: the problem, its device code and its launchers."""
