"""The same rows in two batches: taken from a larger problem's inputs, their results compared bit by bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from autotune.heap.arena import SymmetricHeap
from autotune.problem import Problem


@dataclass(frozen=True)
class Batch:
    """Inputs and results of one call of a problem on this rank, from which smaller batches are cut."""

    problem: Problem
    heap: SymmetricHeap
    tensors: Mapping[str, torch.Tensor]
    """Copies of operands and results, by name."""
    drawn: Any = None
    """All ranks' tokens and their routing, of a mixture of experts."""
    _gathered: dict[str, torch.Tensor] = field(default_factory=dict)

    def cut(self, name: str, like: torch.Tensor, first: int, rows: int) -> torch.Tensor:
        """The part of a tensor that this rank has in a batch of ``rows`` rows from ``first`` on: ``like`` that one.

        A tensor of the same shape in both has nothing to do with rows. Of the others each rank has all rows, or an
        equal share of them. Collective.
        """
        whole = self.tensors[name]
        if whole.shape == like.shape:
            return whole
        if len(whole) == self.problem.batch_rows:
            return whole[first : first + rows]
        if name not in self._gathered:
            self._gathered[name] = gathered(whole, self.heap)
        return self._gathered[name][first + self.heap.rank * len(like) :][: len(like)]


def gathered(tensor: torch.Tensor, heap: SymmetricHeap) -> torch.Tensor:
    """All ranks' tensors of one shape, one behind the other. Collective; by way of the host."""
    part = tensor.contiguous().view(torch.uint8).cpu()
    parts = [torch.empty_like(part) for _ in range(heap.world_size)]
    dist.all_gather(parts, part, group=heap.group)
    return torch.cat(parts).to(tensor.device).view(tensor.dtype)


def unlike(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Numbers of the rows in which two tensors of one shape and type differ in any bit."""
    if not len(one):
        return torch.zeros(0, dtype=torch.int64)
    bits = [each.contiguous().view(torch.uint8).reshape(len(each), -1) for each in (one, other)]
    return (bits[0] != bits[1]).any(1).nonzero().flatten()
