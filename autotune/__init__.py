"""A joint compute and communication autotuner for multi-GPU Triton and Iris kernels."""
