"""The library's collectives over one tensor, under torch 2.13's names: the former ones warn on every rank there."""

from __future__ import annotations

import torch.distributed as dist

all_gather_single = dist.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor

reduce_scatter_single = (
    dist.reduce_scatter_single if hasattr(dist, "reduce_scatter_single") else dist.reduce_scatter_tensor
)
