"""SPMD: ranks of a running program that agree with each other, and tune together without a driver of their own."""
