"""Words that all launchers use: element types by name, what allocates, what can be called."""

from __future__ import annotations

from collections.abc import Callable

import torch

TORCH_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

Run = Callable[[], None]
"""Enqueues one call of an operation on the current stream."""

Allocate = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]
"""A heap's ``allocate``, or one that makes meta tensors for offline compilation."""


def meta(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor without memory: stands in for an operand where kernels are only compiled."""
    return torch.empty(shape, dtype=dtype, device="meta")
