"""The tensors of calls with a second result: the gathered A, or the scales of C."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from autotune.kernels.launching.gemm import GemmTensors


@dataclass(frozen=True)
class GatherTensors(GemmTensors):
    """Tensors with the gathered A, [m, k], as a result."""

    gathered: torch.Tensor | None = None


@dataclass(frozen=True)
class QuantisedTensors(GemmTensors):
    """Tensors with the scales of C in fp8, fp32 [m, columns / 128]."""

    c_scales: torch.Tensor | None = None


def returned_of(tensors: GemmTensors) -> torch.Tensor | None:
    """The tensor for the gathered A; None where it is no result."""
    return tensors.gathered if isinstance(tensors, GatherTensors) else None


def scales_of_c(tensors: GemmTensors) -> torch.Tensor | None:
    """The tensor for the scales of C; None where C has none."""
    return tensors.c_scales if isinstance(tensors, QuantisedTensors) else None
