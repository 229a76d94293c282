"""Problems on which the rungs of ``tune taxes`` are tested under the interpreter."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, dict[str, Any]] = {
    "all_gather_gemm": {"m": 36, "n": 56, "k": 64, "bias": True, "b_order": "nk"},
    "gemm_reduce_scatter": {"m": 44, "n": 40, "k": 128, "bias": True},
    "gemm_all_reduce": {"m": 20, "n": 72, "k": 128, "bias": True},
    "flash_decode": {"batch": 2, "q_heads": 4, "kv_heads": 2, "head_dim": 64, "kv_len": 40, "dtype": "fp16",
                     "ragged": True},
}  # fmt: skip
"""Tiles stand out of every dimension; there are several on each rank."""
