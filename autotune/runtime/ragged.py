"""Shards of unequal numbers of rows, gathered as shards that are padded to the same number.

The numbers are rounded up, so that few problems serve all of them: each has a workspace, and a tuned config.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from autotune.errors import InvalidProblem
from autotune.heap.arena import SymmetricHeap
from autotune.runtime.folding import unlisted
from autotune.sizes import round_up

LARGEST_STEP = 128
"""Rows are rounded up to a power of two, from here on to a multiple of this."""


def capacity(rows: Sequence[int]) -> int:
    """The rows of each shard that serve all of these."""
    most = max(rows)
    return min(round_up(most), -(-most // LARGEST_STEP) * LARGEST_STEP)


def is_ragged(rows: Sequence[int], heap: SymmetricHeap, a: torch.Tensor, dim: int, in_place: bool) -> bool:
    """True if shards with these rows along ``dim``, ``a`` being ours, need padding. Raises InvalidProblem."""
    if len(rows) != heap.world_size or min(rows) < 0 or a.shape[dim] != rows[heap.rank] or dim == a.dim() - 1:
        raise InvalidProblem(
            f"rows={list(rows)}, a {list(a.shape)} on rank {heap.rank}: a number for each of {heap.world_size} ranks "
            f"is needed, ours being the size of a in gather_dim={dim}, which must not be the last dimension"
        )
    if in_place:
        raise InvalidProblem("rows with in_place: shards of unequal length are copied")
    return set(rows) != {capacity(rows)}


def gather_ragged(
    gather: Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor], rows: Sequence[int], dim: int,
    a: torch.Tensor, scale_a: torch.Tensor | None, out: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """``gather`` of this rank's shard and its scales, without the padding: rank by rank, each with its ``rows``.

    Copies the shard unless it is as long as the padded one, and always the result. Raises InvalidProblem.
    """
    padded, scale_a = capacity(rows), unlisted(a, scale_a)
    if scale_a is not None and scale_a.dim() == a.dim():
        scale_a = _padded(scale_a, dim, padded)
    whole = gather(_padded(a, dim, padded), scale_a)
    shape = [*whole.shape]
    shape[dim] = sum(rows)
    if out is not None and (list(out.shape) != shape or out.dtype != whole.dtype):
        raise InvalidProblem(f"out is {list(out.shape)} {out.dtype}; {shape} {whole.dtype} expected")
    parts = [whole.narrow(dim, owner * padded, count) for owner, count in enumerate(rows)]
    return torch.cat(parts, dim) if out is None else torch.cat(parts, dim, out=out)


def _padded(shard: torch.Tensor, dim: int, length: int) -> torch.Tensor:
    """A shard of that length, filled up with zeros. Each row of a product is by itself, but B's gradient is a sum over
    rows, in which nothing times what memory held before may be no number.
    """
    count = shard.shape[dim]
    if count == length:
        return shard
    shape = [*shard.shape]
    shape[dim] = length
    longer = shard.new_empty(shape)
    longer.narrow(dim, 0, count).copy_(shard)
    longer.narrow(dim, count, length - count).zero_()
    return longer
