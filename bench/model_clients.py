"""The models of bench/model_layers.py, shared out over ranks by others' plans or ours.

Two clients, both with random weights: ``pytorch`` is a Llama written like PyTorch's tutorial on tensor parallelism,
under the tutorial's plan; ``transformers`` is that of Hugging Face, under its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import autotune
from autotune.model_runs.layers import Layers, plan
from autotune.models.architecture import Architecture, Biases

Tensor = torch.Tensor


@dataclass(frozen=True)
class Sizes:
    """A model's sizes; by default Llama-70B's, but for the vocabulary, which layers do not see."""

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
    """Experts on all ranks together, each of width ``ffn``; 0 in a dense model."""
    top_k: int = 0

    @property
    def architecture(self) -> Architecture:
        head_dim = self.hidden // self.heads
        return Architecture(
            "llama", self.layers, self.hidden, self.heads, self.kv_heads, head_dim, self.ffn, self.vocabulary,
            Biases(), None,
        )  # fmt: skip


TINY = Sizes(
    hidden=32, ffn=48, heads=4, kv_heads=2, vocabulary=24, layers=1, prefill=(8,), decode=(2,), train=(8,), steps=2,
)  # fmt: skip


@dataclass(frozen=True)
class Phase:
    """Which tokens go through the model, and how the ranks share them."""

    name: str
    sizes: str
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
"""Phases by client. transformers has no plan that shares out the tokens of dense layers."""


class Decoder(nn.Module):
    def __init__(self, model: Architecture, ranks: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(model.vocabulary, model.hidden)
        self.decoder = Layers(model, ranks, separate=True)
        self.norm = nn.RMSNorm(model.hidden)
        self.head = nn.Linear(model.hidden, model.vocabulary, bias=False)

    @property
    def layers(self) -> nn.ModuleList:
        return self.decoder.layers

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.decoder(self.embedding(tokens))))
        return logits


def pytorch(sizes: Sizes, phase: Phase, mesh: DeviceMesh, context: autotune.Context | None, way: str = "") -> nn.Module:
    """By the tutorial's plan; by ours where there is a context, which is the one line of difference."""
    layout = Shard(1) if phase.sequence_parallel else Replicate()
    chosen = plan(True, phase.sequence_parallel, "decoder.layers.*.")
    chosen["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=layout)
    chosen["head"] = ColwiseParallel(input_layouts=layout, output_layouts=Replicate())
    if phase.sequence_parallel:
        chosen["norm"] = SequenceParallel()
    if context is not None:
        chosen = autotune.nn.tuned(chosen, context, keep_gathered=True, share_gather=True)
    return parallelize_module(Decoder(sizes.architecture, mesh.size()), mesh, chosen)


class Logits(nn.Module):
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
