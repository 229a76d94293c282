"""The exchange of tiles between the ranks, or of blocks of rows: its memory, and its arguments beside a GEMM's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import torch
import triton.language as tl

from autotune.dtypes import DTYPES
from autotune.kernels.gemm_all_reduce.problem import SLOTS, GemmAllReduce, in_inboxes
from autotune.kernels.launching.contract import Call
from autotune.kernels.launching.gemm import SummedTensors
from autotune.kernels.launching.scratch import poison_inboxes, wire_type
from autotune.kernels.launching.tensors import Allocate
from autotune.kernels.primitives.all_reduce import ONE_SHOT, PROTOCOLS, TWO_SHOT

SHOTS = {"one_shot": ONE_SHOT, "two_shot": TWO_SHOT}


def shots_of(mode: Any) -> str:
    """One of ``SHOTS``: a word of the config, or else its mode."""
    return str(vars(mode).get("exchange", mode.mode))


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """Memory between launches, zero at the start. All but ``parts`` lies on the heap."""

    epoch_counter: torch.Tensor
    """int64 [1]: see ``primitives/counters.py``."""
    arrivals: torch.Tensor
    """int32 [2, tiles]: parts of a tile that have arrived, over all launches that used the slot."""
    returns: torch.Tensor
    """int32 [2, tiles], ``two_shot``: results of a tile that have arrived."""
    inbox: torch.Tensor
    """Parts of tiles, one after the other: in C's type, or as words, see ``wire_type``."""
    inbox_scales: torch.Tensor | None = None
    """fp32, one for each row of a tile in an inbox of fp8, in the tiles' order; None otherwise."""
    results: torch.Tensor
    """Sums of tiles, ``two_shot``, 2 * tiles of them: likewise."""
    parts: torch.Tensor | None = None
    """[launches, tiles, rows of a tile, its columns] in C's type: this rank's parts that wait for the exchange. What a
    last tile has beyond them is sent, and not stored. None where a GEMM sends what it has just made."""

    @classmethod
    def of(
        cls, mode: Any, world_size: int, dtype: torch.dtype, tiles: int, tile: tuple[int, int], shared: Allocate,
        quantised: torch.dtype | None = None, **further: Any,
    ) -> Self:  # fmt: skip
        """Memory for so many tiles of this shape; ``quantised`` is the type of parts that travel as fp8."""
        parts, results = in_inboxes(shots_of(mode), tiles, world_size)
        wire = wire_type(mode.protocol, dtype)
        words = math.prod(tile) * dtype.itemsize * (2 if mode.protocol == "ll" else 1) // wire.itemsize
        return cls(
            epoch_counter=shared((1,), torch.int64),
            arrivals=shared((SLOTS, tiles), torch.int32),
            returns=shared((results,), torch.int32),
            inbox=shared((parts * words,), quantised or wire),
            inbox_scales=shared((parts * tile[0],), torch.float32) if quantised else None,
            results=shared((results * words,), wire),
            **further,
        )

    def poison(self) -> None:
        """Fill with NaN what a right launch writes before it reads it."""
        poison_inboxes(self.inbox, self.results, self.inbox_scales, self.parts)


def exchange_arguments(call: Call[GemmAllReduce, Any, SummedTensors, Any]) -> dict[str, Any]:
    """The arguments of an all-reduce, with or without a GEMM before it."""
    problem, mode, scratch = call.problem, call.knobs, call.scratch
    return {
        **call.common(), "inbox": scratch.inbox, "inbox_scales": scratch.inbox_scales, "results": scratch.results,
        "arrivals": scratch.arrivals, "returns": scratch.returns,
        "TYPE": getattr(tl, DTYPES[problem.result_dtype].triton), "MODE": SHOTS[shots_of(mode)].value,
        "PROTOCOL": PROTOCOLS[mode.protocol].value,
        "residual": call.tensors.residual if problem.residual else None,
    }  # fmt: skip
