"""Parts of tensors on ranks, and differences, for the tests of modules."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

Tensor = torch.Tensor
HEAP = 1 << 28 if torch.cuda.is_available() else 32 << 20


def difference(found: Tensor, right: Tensor) -> float:
    """Relative; infinite where a NaN came out."""
    found, right = whole(found).double(), whole(right).double()
    assert found.shape == right.shape, (found.shape, right.shape)
    return float(((found - right).norm() / right.norm()).nan_to_num(nan=float("inf")))


def whole(tensor: Tensor) -> Tensor:
    return tensor.detach().full_tensor() if isinstance(tensor, DTensor) else tensor.detach()


def part(tensor: Tensor, dim: int) -> Tensor:
    """This rank's, as a leaf."""
    return tensor.detach().chunk(dist.get_world_size(), dim)[dist.get_rank()].clone().requires_grad_()
