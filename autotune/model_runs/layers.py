"""A decoder's layers with random weights, and PyTorch's own tensor-parallel plan for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)

from autotune.models.forward import qkv_width

if TYPE_CHECKING:
    from autotune.models.architecture import Architecture

Tensor = torch.Tensor

GELU = ("gemma", "gemma2", "gemma3_text")
"""Kinds whose gate is a GELU; that of all others is a SiLU."""


class Attention(nn.Module):
    """Attention without rotary positions and a KV cache, which do not communicate."""

    def __init__(self, model: Architecture, ranks: int, separate: bool) -> None:
        super().__init__()
        self.head_dim = model.head_dim
        whole, narrow = model.heads * model.head_dim, max(model.kv_heads, ranks) * model.head_dim
        self.widths = [whole // ranks, narrow // ranks, narrow // ranks]
        bias = model.biases.qkv
        self.qkv = None if separate else nn.Linear(model.hidden, qkv_width(model, ranks), bias)
        if separate:
            self.q = nn.Linear(model.hidden, whole, bias)
            self.k, self.v = (nn.Linear(model.hidden, narrow, bias) for _ in range(2))
        self.out = nn.Linear(whole, model.hidden, model.biases.out)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` [batch, tokens, hidden], all tokens."""
        if self.qkv is None:
            projected = (self.q(x), self.k(x), self.v(x))
        else:
            projected = self.qkv(x).split(self.widths, dim=-1)
        batch, tokens = projected[0].shape[:2]
        q, k, v = (each.reshape(batch, tokens, -1, self.head_dim).transpose(1, 2) for each in projected)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        result: Tensor = self.out(heads.transpose(1, 2).reshape(batch, tokens, -1))
        return result


class Mlp(nn.Module):
    def __init__(self, model: Architecture, separate: bool) -> None:
        super().__init__()
        self.gelu, bias = model.kind in GELU, model.biases.mlp
        self.gate_up = None if separate else nn.Linear(model.hidden, 2 * model.intermediate, bias)
        if separate:
            self.gate, self.up = (nn.Linear(model.hidden, model.intermediate, bias) for _ in range(2))
        self.down = nn.Linear(model.intermediate, model.hidden, bias)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = (self.gate(x), self.up(x)) if self.gate_up is None else self.gate_up(x).chunk(2, dim=-1)
        opened = F.gelu(gate, approximate="tanh") if self.gelu else F.silu(gate)
        result: Tensor = self.down(opened * up)
        return result


class Layer(nn.Module):
    def __init__(self, model: Architecture, ranks: int, separate: bool) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(model.hidden), nn.RMSNorm(model.hidden)
        self.attention, self.mlp = Attention(model, ranks, separate), Mlp(model, separate)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        result: Tensor = x + self.mlp(self.mlp_norm(x))
        return result


class Layers(nn.Module):
    """A decoder between its embedding and its head; ``layers`` may be fewer than the model has."""

    def __init__(self, model: Architecture, ranks: int, separate: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(model, ranks, separate) for _ in range(model.layers))

    def forward(self, x: Tensor) -> Tensor:
        """``x`` [batch, tokens, hidden], of sequence parallelism this rank's tokens; the result is like it."""
        for layer in self.layers:
            x = layer(x)
        return x


def plan(separate: bool, sequence_parallel: bool, prefix: str = "layers.*.") -> dict[str, ParallelStyle]:
    """Styles of ``Layers``, as in PyTorch's tutorial on tensor parallelism; ``prefix`` leads to a layer."""
    columns = ["attention.q", "attention.k", "attention.v", "mlp.gate", "mlp.up"]
    if not separate:
        columns = ["attention.qkv", "mlp.gate_up"]
    made: dict[str, ParallelStyle] = {prefix + name: ColwiseParallel() for name in columns}
    layout = Shard(1) if sequence_parallel else Replicate()
    for name in ("attention.out", "mlp.down"):
        made[prefix + name] = RowwiseParallel(output_layouts=layout)
    if sequence_parallel:
        for name in ("attention", "mlp"):
            gathered = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
            made[prefix + name] = gathered
        for name in ("attention_norm", "mlp_norm"):
            made[prefix + name] = SequenceParallel()
    return made
