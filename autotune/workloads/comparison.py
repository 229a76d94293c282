"""Random inputs that every rank can draw from a seed, and how far a result is from its reference."""

from __future__ import annotations

import torch

from autotune.workloads.workload import Error


def drawn(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int) -> torch.Tensor:
    """Normally distributed numbers, the same on every rank for the same seed: a reference needs no communication."""
    generator = torch.Generator(device=device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(dtype)


def distance(result: torch.Tensor, reference: torch.Tensor) -> Error:
    """The error of ``result`` in the type of ``reference`` (fp32, or fp64 for fp32 results); NaN where it holds one."""
    difference = result.to(reference.dtype) - reference
    norm = reference.norm()
    rms = norm / reference.numel() ** 0.5
    return Error(float(difference.norm() / norm), float(difference.abs().max() / rms))
