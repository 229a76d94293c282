"""Device code and launchers, one folder per workload; the transfer and tile helpers that they share."""
