"""The knobs of flash decode, as in its search space."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.kernels.launching.knobs import Knobs


@dataclass(frozen=True, kw_only=True)
class FlashDecodeKnobs(Knobs):
    """Every mode has the knobs without a default. Defaults stand for knobs that a mode lacks; they have no effect
    there.
    """

    launch: str = "eager"
    block_n: int
    kv_splits: int
    heads_per_program: int
    num_warps: int
    num_stages: int
    table_reads: str
    program_order: str
    reducer: str
    transfer_heads: int = 0
    """0 for the library's exchange, in units of one tile."""
    combine_heads: int
    wire: str
    exchange: str = "one_shot"
    combine_site: str = "next_launch"
    protocol: str = "signal"

    @property
    def ll(self) -> bool:
        """True if partial results travel by the LL protocol."""
        return self.protocol == "ll"
