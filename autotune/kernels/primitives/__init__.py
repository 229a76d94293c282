"""Device code that the workloads' kernels share: tiles, transfers, counters, splits, and the meeting of all ranks."""
