"""Device code and launchers, one folder per workload, and their shared transfer and tile helpers."""
