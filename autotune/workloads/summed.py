"""The common part of workloads whose C is a sum over ranks: the sizes in a caller's operands, the reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import torch

from autotune.kernels.gemm.problem import SummedProblem
from autotune.kernels.launching.contract import S
from autotune.workloads.gemm import GemmOperation, GemmWorkload

Q = TypeVar("Q", bound=SummedProblem)


class SummedOperation(GemmOperation[Q, S], Generic[Q, S]):
    """Its operands lie in ordinary memory."""

    @property
    def rows(self) -> slice:
        """The rows of C that this rank gets."""
        return slice(None)

    def draw_operands(self, seed: int) -> torch.Tensor:
        """Every rank draws every rank's operands, one rank's at a time: a large B is there only once more."""
        tensors, rank = self._tensors, self._heap.rank
        product = torch.zeros(tensors.c.shape, dtype=self.wide, device=self._heap.device)
        for source in range(self._heap.world_size):
            a, b = self.draw_a(seed * 1000 + source), self.draw_b(seed * 1000 + 500 + source)
            scale_a = self.draw_scales(tensors.scale_a, seed * 1000 + 250 + source)
            scale_b = self.draw_scales(tensors.scale_b, seed * 1000 + 600 + source)
            product.addmm_(self.widened(a, scale_a)[self.rows], self.widened(b, scale_b))
            if source == rank:
                self.take(a, scale_a, b, scale_b)
        self.draw_bias(seed * 1000 + 750, self._problem.k)
        return product


class SummedWorkload(GemmWorkload):
    """Its ranks have slices of the depth."""

    def sizes(self, world_size: int, a: torch.Tensor, b: torch.Tensor, options: Mapping[str, Any]) -> dict[str, int]:
        """The depth is that of all ranks together."""
        return {"m": a.shape[0], "n": b.shape[1], "k": a.shape[1] * world_size}
