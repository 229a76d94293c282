"""Mixture-of-experts dispatch with the first grouped GEMM."""
