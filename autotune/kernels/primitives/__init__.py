"""Device code that the workloads' kernels share: tiles, transfers, counters, splits, the LL protocol, the barrier."""
