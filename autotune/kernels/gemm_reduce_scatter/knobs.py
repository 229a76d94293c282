"""The knobs of GEMM + reduce-scatter, as in its search space."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.kernels.launching.gemm import GemmKnobs

LIBRARY_GEMM = ("own_collective", "copy_engine")
"""Modes with scratch whose GEMM is the library's."""


@dataclass(frozen=True, kw_only=True)
class GemmReduceScatterKnobs(GemmKnobs):
    """Where a mode lacks one, it has no effect as it is here."""

    peer_order: str = "rotate"
    transfer_tiles: int = 0
    signals: str = "at_once"
    sum_block: int = 0
    sum_warps: int = 0
