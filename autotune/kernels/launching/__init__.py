"""Host code that the workloads' launchers share: plans of launches, GEMM knobs, CUDA graphs."""
