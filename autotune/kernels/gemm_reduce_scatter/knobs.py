"""The knobs of GEMM + reduce-scatter, as in its search space."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.kernels.launching.gemm import GemmKnobs

LIBRARY_GEMM = ("own_collective", "copy_engine")
"""Modes with scratch whose GEMM is the library's."""


@dataclass(frozen=True, kw_only=True)
class GemmReduceScatterKnobs(GemmKnobs):
    """Defaults stand for knobs that a mode lacks; they have no effect there."""

    peer_order: str = "rotate"
    transfer_tiles: int = 0
    signals: str = "at_once"
    sum_block: int = 0
    sum_warps: int = 0
