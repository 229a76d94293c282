"""The built-in workloads: each joins a problem, its kernels and its space."""
