"""Words that all launchers use: element types by name, what allocates, what can be called."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch

from autotune.dtypes import DTYPES, OPERAND_TYPES
from autotune.errors import InvalidProblem

TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, each.torch) for name, each in DTYPES.items()}

OPERAND_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, each.torch) for name, each in OPERAND_TYPES.items()}
"""Torch dtypes of operands, including fp8, which no result has."""

Run = Callable[[], None]
"""Enqueues one call of an operation on the current stream."""

Allocate = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]
"""A heap's ``allocate``, or one that makes meta tensors for offline compilation."""


def meta(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor without memory: stands in for an operand where kernels are only compiled."""
    return torch.empty(shape, dtype=dtype, device="meta")


def element_type(tensors: dict[str, torch.Tensor | None], allowed: Collection[str]) -> str:
    """Our name of the element type that all tensors have; raises InvalidProblem where it is none of ``allowed``."""
    found = {name: tensor.dtype for name, tensor in tensors.items() if tensor is not None}
    names = {OPERAND_DTYPES[name]: name for name in allowed}
    types = set(found.values())
    if len(types) != 1 or not types <= set(names):
        said = ", ".join(f"{name} is {dtype}" for name, dtype in found.items())
        raise InvalidProblem(f"{said}; use one of {', '.join(map(str, names))} for all")
    return names[types.pop()]
