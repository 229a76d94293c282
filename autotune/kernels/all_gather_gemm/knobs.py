"""The knobs of all-gather + GEMM, as in its search space."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.kernels.launching.gemm import GemmKnobs

READ_BY_PEERS = ("pull", "pull_staged", "copy_engine")
"""Modes whose peers read our shard in place: at the same place on the symmetric heap on every rank."""


@dataclass(frozen=True, kw_only=True)
class AllGatherGemmKnobs(GemmKnobs):
    """Defaults stand for knobs that a mode lacks; they have no effect there."""

    preload_b: bool = False
    peer_order: str = "rotate"
    push_site: str = "same_launch"

    @property
    def slots(self) -> int:
        """Inboxes used in turn, a power of two: two if peers push into them, one if only we write."""
        return 2 if self.mode == "push" else 1
