"""The knobs of GEMM + all-reduce, as in its search space."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.kernels.launching.gemm import GemmKnobs


@dataclass(frozen=True, kw_only=True)
class GemmAllReduceKnobs(GemmKnobs):
    """Defaults stand for knobs that a mode lacks; they have no effect there."""

    programs_per_unit: int = 1
    combine: str = "sender"
    protocol: str = "signal"

    @property
    def ll(self) -> bool:
        """True if parts travel by the LL protocol."""
        return self.protocol == "ll"

    @property
    def separate(self) -> bool:
        """True if programs of their own combine."""
        return self.combine == "separate"
