"""Memory of one config's kernels, kept between launches and shared across ranks; counters are zero at the start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch

from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.launching.scratch import Counters, poison_inboxes
from autotune.kernels.launching.tensors import OPERAND_DTYPES, Allocate


@dataclass(frozen=True, kw_only=True)
class Inbox(Counters):
    """A whole A, on the heap."""

    arrivals: torch.Tensor
    """int32 [k_chunks, world_size, units]; of tiles across shards [slots, k_chunks]"""
    inbox: torch.Tensor
    """[slots * m, k] or, of tiles across shards, with rows to spare for the last one"""
    scale_inbox: torch.Tensor | None
    """fp32 [as many, scales of a row], where scales travel."""

    @classmethod
    def of_units(
        cls, problem: AllGatherGemm, shared: Allocate, units: int, *, slots: int = 1, chunks: int = 1, **others: Any
    ) -> Self:  # fmt: skip
        """``units`` of a shard, each of which arrives as one. ``slots``: inboxes used in turn, a power of two."""
        return cls.of_rows(problem, shared, slots * problem.m, (chunks, problem.world_size, units), **others)

    @classmethod
    def of_rows(
        cls, problem: AllGatherGemm, shared: Allocate, rows: int, arrivals: tuple[int, ...], **others: Any
    ) -> Self:  # fmt: skip
        return cls.of(
            problem.world_size, shared,
            arrivals=shared(arrivals, torch.int32),
            inbox=shared((rows, problem.k), OPERAND_DTYPES[problem.dtype]),
            scale_inbox=shared((rows, problem.scale_columns), torch.float32) if problem.gathers_scales else None,
            **others,
        )  # fmt: skip

    def poison(self) -> None:
        poison_inboxes(self.inbox, self.scale_inbox)
