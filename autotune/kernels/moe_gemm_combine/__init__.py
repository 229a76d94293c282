"""The second grouped GEMM of a mixture of experts, and the combine of its rows at their tokens' ranks."""
