"""A decoder's layers with random weights, and PyTorch's own tensor-parallel plan for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import all_gather_tensor, all_reduce, reduce_scatter_tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)

from autotune.kernels.moe.grouped_launch import GroupedOperands
from autotune.kernels.moe.library import grouped_product
from autotune.kernels.moe_dispatch.library import Arrived
from autotune.kernels.moe_dispatch_gemm.library import multiply
from autotune.models.forward import qkv_width
from autotune.nn.experts import expert_parallel, routed

if TYPE_CHECKING:
    from autotune.models.architecture import Architecture
    from autotune.runtime.context import Context

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


class Mixture(nn.Module):
    """A router, this rank's share of the experts, whole ones, and the experts that every token goes to.

    Without a context the way of fixed shapes that serving stacks take: every rank runs its experts on all tokens, and
    the sums are reduced over ranks.
    """

    def __init__(
        self, model: Architecture, mesh: DeviceMesh, separate: bool, sharded: bool, context: Context | None
    ) -> None:  # fmt: skip
        """``sharded``: the ranks share the tokens out; else all have the same."""
        super().__init__()
        mixture = model.mixture
        assert mixture is not None
        local, self.top_k = mixture.experts // mesh.size(), mixture.top_k
        self.first, self.group = local * mesh.get_local_rank(), mesh.get_group()
        self.sharded, self.context = sharded, context
        self.router = nn.Linear(model.hidden, mixture.experts, bias=False)
        self.register_buffer("unchosen", torch.zeros(mixture.experts), persistent=False)
        seed = int(torch.randint(1 << 30, ())) + mesh.get_local_rank()
        generator = torch.Generator(self.router.weight.device).manual_seed(seed)
        self.gate_up_proj = _drawn(generator, local, 2 * mixture.width, model.hidden)
        self.down_proj = _drawn(generator, local, model.hidden, mixture.width)
        self.shared = Mlp(replace(model, intermediate=mixture.shared), separate) if mixture.shared else None

    def choose(self, ids: Tensor) -> None:
        """From now on tokens go to the experts ``ids`` int [batch, tokens, top_k], with the router's gates."""
        never = torch.full((*ids.shape[:-1], self.router.out_features), -torch.inf, device=ids.device)
        self.unchosen = never.scatter_(-1, ids.long(), 0.0)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` [batch, tokens, hidden], this rank's tokens if they are shared out."""
        ids, gates = routed(self.router(x).float() + self.unchosen, self.top_k)
        if self.context is None:
            return self._plain(x.flatten(0, 1), ids.flatten(0, 1), gates.flatten(0, 1)).view(x.shape)
        experts = self.gate_up_proj, self.down_proj
        found = expert_parallel(self.context, x, ids, gates, *experts, replicated=not self.sharded)
        return found if self.shared is None else found + self.shared(x)

    def _plain(self, x: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        if self.sharded:
            routing = torch.cat([ids, gates.view(torch.int32)], dim=1)
            x, routing = (all_gather_tensor(each, 0, self.group) for each in (x, routing))
            ids, gates = routing[:, : self.top_k], routing[:, self.top_k :].view(torch.float32)
        sums = sums_of_experts(x, ids - self.first, gates, self.gate_up_proj, self.down_proj)
        if self.shared is not None:
            sums = sums + self.shared(x)
        reduced: Tensor = (
            reduce_scatter_tensor(sums, "sum", 0, self.group) if self.sharded else all_reduce(sums, "sum", self.group)
        )
        return reduced


def _drawn(generator: torch.Generator, experts: int, columns: int, depth: int) -> nn.Parameter:
    """Weights as ``nn.Linear`` draws them."""
    weight = torch.empty(experts, columns, depth)
    return nn.Parameter(weight.uniform_(-(depth**-0.5), depth**-0.5, generator=generator))


def sums_of_experts(x: Tensor, ids: Tensor, gates: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Each token's sum of gate * expert over these experts, whose ``ids`` count from 0; with torch's grouped GEMM the
    host reads nothing.

    Rows are sorted by expert, those of other ranks' experts last. Each token then reads its rows: unrolled, so that a
    compiler makes one kernel of the sums.
    """
    experts, top_k = len(gate_up), ids.shape[1]
    here = (ids >= 0) & (ids < experts)
    expert, pairs = torch.sort(torch.where(here, ids, experts).flatten(), stable=True)
    bounds = torch.arange(experts + 1, dtype=expert.dtype, device=x.device)
    products = _products(x, pairs, torch.searchsorted(expert, bounds, out_int32=True), top_k, gate_up, down)
    rows = torch.empty_like(pairs).scatter_(0, pairs, torch.arange(len(pairs), device=x.device)).view_as(ids)
    total = torch.zeros_like(x, dtype=torch.float32)
    for row, weight, exists in zip(rows.T, gates.T[..., None], here.T[..., None], strict=True):
        total = total + torch.where(exists, products[row].float() * weight, 0.0)
    return total.to(x.dtype)


@torch.library.custom_op("iris_autotune::products_of_experts", mutates_args=())
def _products(x: Tensor, pairs: Tensor, offsets: Tensor, top_k: int, gate_up: Tensor, down: Tensor) -> Tensor:
    """Rows [pairs, hidden], each its expert's. As in the library's ways of our operators those from ``offsets[-1]`` on
    are not copied, multiplied or activated; no call of torch copies or activates as many rows as the device says.
    """
    rows = Arrived(x, pairs, top_k, offsets[-1:]).rows(0, None, x)
    opened = x.new_empty((len(rows), down.shape[2]))
    multiply(GroupedOperands(rows, gate_up.mT, offsets, len(rows), epilogue="swiglu", halves=True), opened)
    return grouped_product(GroupedOperands(opened, down.mT, offsets, len(rows)))


@_products.register_fake
def _(x: Tensor, pairs: Tensor, offsets: Tensor, top_k: int, gate_up: Tensor, down: Tensor) -> Tensor:
    return x.new_empty((len(pairs), x.shape[1]))


class Layer(nn.Module):
    def __init__(
        self, model: Architecture, ranks: int, separate: bool, mixture: Callable[[], Mixture] | None = None
    ) -> None:  # fmt: skip
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(model.hidden), nn.RMSNorm(model.hidden)
        self.attention = Attention(model, ranks, separate)
        self.mlp = Mlp(model, separate) if mixture is None else mixture()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        result: Tensor = x + self.mlp(self.mlp_norm(x))
        return result


class Layers(nn.Module):
    """A decoder between its embedding and its head; ``layers`` may be fewer than the model has.

    ``mixture`` makes each layer's experts; None: its MLPs are dense.
    """

    def __init__(
        self, model: Architecture, ranks: int, separate: bool, mixture: Callable[[], Mixture] | None = None
    ) -> None:  # fmt: skip
        super().__init__()
        self.layers = nn.ModuleList(Layer(model, ranks, separate, mixture) for _ in range(model.layers))

    def forward(self, x: Tensor) -> Tensor:
        """``x`` [batch, tokens, hidden], of sequence parallelism this rank's tokens; the result is like it."""
        for layer in self.layers:
            x = layer(x)
        return x


def plan(
    separate: bool, sequence_parallel: bool, prefix: str = "layers.*.", mlp: str = "mlp"
) -> dict[str, ParallelStyle]:  # fmt: skip
    """Styles of ``Layers``, as in PyTorch's tutorial on tensor parallelism; ``prefix`` leads to a layer, ``mlp`` to its
    MLP, if it has one.
    """
    blocks: dict[str, tuple[tuple[str, ...], str]] = {"attention": (("q", "k", "v") if separate else ("qkv",), "out")}
    if mlp:
        blocks[mlp] = (("gate", "up") if separate else ("gate_up",), "down")
    made: dict[str, ParallelStyle] = {}
    layout = Shard(1) if sequence_parallel else Replicate()
    for name, (inputs, output) in blocks.items():
        made |= {f"{prefix}{name}.{each}": ColwiseParallel() for each in inputs}
        made[f"{prefix}{name}.{output}"] = RowwiseParallel(output_layouts=layout)
        if sequence_parallel:
            gathered = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
            made[prefix + name] = gathered
    if sequence_parallel:
        for name in ("attention_norm", "mlp_norm"):
            made[prefix + name] = SequenceParallel()
    return made


def mixture_plan(separate: bool, sequence_parallel: bool, shared: bool, plain: bool) -> dict[str, ParallelStyle]:
    """Styles of ``Layers`` with a ``Mixture``. Plain's gathers the tokens of shared experts with those of the others,
    and sums them over ranks together.
    """
    made = plan(separate, sequence_parallel, mlp="mlp.shared" if shared else "")
    if sequence_parallel:
        made["layers.*.mlp_norm"] = SequenceParallel(use_local_output=True)
    if shared and plain:
        made.pop("layers.*.mlp.shared", None)
        made["layers.*.mlp.shared.down"] = RowwiseParallel(output_layouts=Partial())
    return made
