"""A small model's sizes, and an MLP as DTensor runs it."""

from __future__ import annotations

import torch
import torch.distributed as dist
from cases import K, N
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import Linear, Module, Sequential

from autotune.models.architecture import Architecture, Biases

DECODER = Architecture("llama", 2, 32, 4, 2, 8, 48, 100, Biases(), None)
"""Two layers of it have three sums that a norm follows."""


class Layer(Module):
    """An MLP as DTensor runs it with sequence parallelism; without, its sum is on every rank."""

    def __init__(self, *, sequence_parallel: bool, bias: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.mlp = Sequential(Linear(2 * K, 2 * N, bias=bias), torch.nn.SiLU(), Linear(2 * N, 2 * K, bias=bias))
        self.sequence_parallel = sequence_parallel

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mlp(x * 1.5) + 1

    def parallel(self) -> Layer:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        up, down = ColwiseParallel(), RowwiseParallel()
        if self.sequence_parallel:
            up, down = ColwiseParallel(input_layouts=Shard(1)), RowwiseParallel(output_layouts=Shard(1))
        parallelize_module(self, mesh, {"mlp.0": up, "mlp.2": down})
        return self
