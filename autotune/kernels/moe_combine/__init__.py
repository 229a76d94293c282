"""Mixture-of-experts combine: rows of experts back to their tokens' ranks, weighted and summed."""
