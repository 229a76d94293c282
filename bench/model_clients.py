"""The models of bench/model_layers.py, shared out over ranks by others' plans or ours, and the problems that they call.

Two clients, both with random weights: ``pytorch`` is a Llama written like PyTorch's tutorial on tensor parallelism,
under the tutorial's plan; ``transformers`` is that of Hugging Face, under its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import autotune
from autotune.problem import Problem

Tensor = torch.Tensor


@dataclass(frozen=True)
class Sizes:
    """Those of Llama-70B, but for the vocabulary, which layers do not see."""

    hidden: int = 8192
    ffn: int = 28672
    heads: int = 64
    kv_heads: int = 8
    vocabulary: int = 4096
    layers: int = 4
    prefill: tuple[int, ...] = (512, 2048, 8192)
    decode: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    train: tuple[int, ...] = (4096,)
    steps: int = 20
    experts: int = 0
    """Of all ranks together, each of width ``ffn``; 0 in a dense model."""
    top_k: int = 0


TINY = Sizes(
    hidden=32, ffn=48, heads=4, kv_heads=2, vocabulary=24, layers=1, prefill=(8,), decode=(2,), train=(8,), steps=2,
)  # fmt: skip


@dataclass(frozen=True)
class Phase:
    """Which tokens go through the model, and how the ranks share them."""

    name: str
    sizes: str
    """The field of ``Sizes`` with the numbers of tokens."""
    sequence_parallel: bool = False
    training: bool = False
    own_tokens: bool = False
    """True if each rank forwards its own."""

    def tokens(self, sizes: Sizes) -> tuple[int, ...]:
        found: tuple[int, ...] = getattr(sizes, self.sizes)
        return found


PHASES: Mapping[str, tuple[Phase, ...]] = {
    "pytorch": (
        Phase("prefill", "prefill"),
        Phase("prefill-sp", "prefill", sequence_parallel=True),
        Phase("decode", "decode"),
        Phase("train", "train", sequence_parallel=True, training=True),
    ),
    "transformers": (Phase("prefill", "prefill"), Phase("decode", "decode"), Phase("train", "train", training=True)),
    "mixture": (Phase("prefill", "prefill", own_tokens=True), Phase("decode", "decode", own_tokens=True)),
}
"""Of each client. transformers has no plan that shares out the tokens of dense layers."""


class Attention(nn.Module):
    """Without rotary positions, which take no part in communication."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.head_dim = sizes.hidden // sizes.heads
        self.wq = nn.Linear(sizes.hidden, sizes.hidden, bias=False)
        self.wk, self.wv = (nn.Linear(sizes.hidden, sizes.kv_heads * self.head_dim, bias=False) for _ in range(2))
        self.wo = nn.Linear(sizes.hidden, sizes.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = (w(x).view(batch, tokens, -1, self.head_dim).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        out: Tensor = self.wo(heads.transpose(1, 2).reshape(batch, tokens, -1))
        return out


class Mlp(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(sizes.hidden, sizes.ffn, bias=False) for _ in range(2))
        self.down = nn.Linear(sizes.ffn, sizes.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class Layer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(sizes.hidden), nn.RMSNorm(sizes.hidden)
        self.attention, self.mlp = Attention(sizes), Mlp(sizes)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        out: Tensor = x + self.mlp(self.mlp_norm(x))
        return out


class Llama(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.hidden)
        self.head = nn.Linear(sizes.hidden, sizes.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(self.norm(x))
        return out


def plan(sequence_parallel: bool) -> dict[str, ParallelStyle]:
    """As in PyTorch's tutorial on tensor parallelism."""
    columns = ("attention.wq", "attention.wk", "attention.wv", "mlp.gate", "mlp.up")
    made: dict[str, ParallelStyle] = {f"layers.*.{name}": ColwiseParallel() for name in columns}
    layout = Shard(1) if sequence_parallel else Replicate()
    for name in ("attention.wo", "mlp.down"):
        made[f"layers.*.{name}"] = RowwiseParallel(output_layouts=layout)
    made["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=layout)
    made["head"] = ColwiseParallel(input_layouts=layout, output_layouts=Replicate())
    if sequence_parallel:
        for name in ("attention", "mlp"):
            gathered = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
            made[f"layers.*.{name}"] = gathered
        for name in ("layers.*.attention_norm", "layers.*.mlp_norm", "norm"):
            made[name] = SequenceParallel()
    return made


def pytorch(sizes: Sizes, phase: Phase, mesh: DeviceMesh, context: autotune.Context | None, way: str = "") -> nn.Module:
    """By the tutorial's plan; by ours where there is a context, which is the one line of difference."""
    chosen: Mapping[str, ParallelStyle] = plan(phase.sequence_parallel)
    if context is not None:
        chosen = autotune.nn.tuned(chosen, context, share_gather=True)
        if phase.training:  # keys and values are too narrow to hide a gather each: the three share torch's
            chosen["layers.*.attention"] = plan(sequence_parallel=True)["layers.*.attention"]
    return parallelize_module(Llama(sizes), mesh, chosen)


class Logits(nn.Module):
    """A model of transformers as one from tokens to logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.layers = model.model.layers

    def forward(self, tokens: Tensor) -> Tensor:
        """As the model's own forward, but for the mask: that makes none, or one while a stream is captured."""
        base, positions = self.model.model, torch.arange(tokens.shape[1], device=tokens.device)[None]
        x = base.embed_tokens(tokens)
        angles = base.rotary_emb(x, position_ids=positions)
        for layer in base.layers:
            x = layer(x, attention_mask=None, position_embeddings=angles, position_ids=positions, use_cache=False)
        logits: Tensor = self.model.lm_head(base.norm(x))
        return logits


def transformers(
    sizes: Sizes, phase: Phase, mesh: DeviceMesh, context: autotune.Context | None, way: str = ""
) -> nn.Module:  # fmt: skip
    """By the plan of Hugging Face's Llama, on its styles or ours."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=sizes.hidden, intermediate_size=sizes.ffn, num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads, num_key_value_heads=sizes.kv_heads, vocab_size=sizes.vocabulary,
        attn_implementation="sdpa",
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    if context is not None:
        return Logits(autotune.nn.transformers.parallelize(model, mesh, context))
    return Logits(autotune.nn.transformers.shared_out(model, mesh))


def problems(phase: Phase, sizes: Sizes, ranks: int, dtype: str) -> Iterator[Problem]:
    """What our styles call in this phase, or the pass looks for, for every number of tokens."""
    columns = {sizes.hidden, sizes.kv_heads * sizes.hidden // sizes.heads, sizes.ffn, sizes.vocabulary}
    for m in phase.tokens(sizes):
        common: dict[str, Any] = {"m": m, "n": sizes.hidden, "world_size": ranks, "dtype": dtype}
        for k in (sizes.hidden, sizes.ffn):
            if phase.sequence_parallel:
                yield autotune.GemmReduceScatter(**common, k=k, b_order="nk")
            else:
                yield autotune.GemmAllReduce(**common, k=k, b_order="nk")
        if phase.sequence_parallel:
            yield from _trained(sizes, common) if phase.training else _gathered_once(sizes, common)
        elif phase.training:
            for width in sorted(columns):
                yield autotune.GemmAllReduce(**common, k=width, b_order="kn")


def _gathered_once(sizes: Sizes, common: dict[str, Any]) -> Iterator[Problem]:
    """The first layer behind each gather gives back what it has gathered, for the others."""
    for width in sorted({sizes.hidden, sizes.ffn}):
        yield autotune.AllGatherGemm(**{**common, "n": width}, k=sizes.hidden, b_order="nk", gathered=True)
    yield autotune.AllGatherGemm(**{**common, "n": sizes.vocabulary}, k=sizes.hidden, b_order="nk")


def _trained(sizes: Sizes, common: dict[str, Any]) -> Iterator[Problem]:
    """The gathers of a forward, and each layer's gradients of input and weight."""
    columns = sorted({sizes.ffn, sizes.vocabulary})
    rows = {**common, "k": sizes.hidden}
    for width in columns:
        yield autotune.AllGatherGemm(**{**rows, "n": width}, b_order="nk")
        yield autotune.GemmReduceScatter(**common, k=width, b_order="kn")
    weights = {"m": sizes.hidden, "k": common["m"], "layout": "k", "b_order": "kn"}
    for width in sorted({*columns, sizes.hidden}):
        yield autotune.AllGatherGemm(**{**common, **weights, "n": width})
    for k in (sizes.hidden, sizes.ffn):
        yield autotune.AllGatherGemm(**{**rows, "n": k}, b_order="kn")
