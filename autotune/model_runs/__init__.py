"""Layers of a model with random weights on ranks: plain tensor parallelism against ours, compared and timed."""
