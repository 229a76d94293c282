"""The models of bench/model_layers.py, shared out over ranks by others' plans or ours, all with random weights.

``pytorch`` is a Llama written like PyTorch's tutorial on tensor parallelism, under the tutorial's plan;
``transformers`` is that of Hugging Face, under its own. ``mixture`` is Hugging Face's Qwen3-MoE: each rank forwards its
own tokens, with all of attention. Its ways: "plain" is transformers' own all-to-all, whose sizes the host reads;
"gathered" is the one of fixed shapes that serving stacks take: all ranks' tokens are gathered, each rank runs its
experts on all of them, and the sums are reduce-scattered; "styles" is ``share_experts``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed._functional_collectives import all_gather_tensor, reduce_scatter_tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
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

SHARPER = 4.0
"""Routers' weights times this: logits as far apart as those of a trained router. Where rounding changes a token's last
choice, that is one of little weight, and results can be compared.
"""


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

MIXTURE = Sizes(
    hidden=4096, ffn=1536, heads=64, kv_heads=4, vocabulary=4096, layers=2, prefill=(512, 2048), decode=(1, 8, 32, 128),
    experts=128, top_k=8,
)  # fmt: skip
"""Sizes of Qwen3-235B-A22B, but for layers and vocabulary."""

TINY_MIXTURE = Sizes(
    hidden=32, ffn=16, heads=4, kv_heads=2, vocabulary=24, layers=1, prefill=(8,), decode=(2,), experts=4, top_k=2,
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


def expert_parallelism() -> bool:
    """transformers has the all-to-all that ours is compared with: 5.23 does, 5.20 does not."""
    try:
        return importlib.util.find_spec("transformers.distributed.expert_parallel") is not None
    except ModuleNotFoundError:  # no transformers, or one without that folder
        return False


def mixture(
    sizes: Sizes, phase: Phase, mesh: DeviceMesh, context: autotune.Context | None, way: str = "plain"
) -> nn.Module:  # fmt: skip
    """Qwen3's mixture; its experts by ours where there is a context, which is the one line of difference."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        hidden_size=sizes.hidden, moe_intermediate_size=sizes.ffn, num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads, num_key_value_heads=sizes.kv_heads, vocab_size=sizes.vocabulary,
        head_dim=sizes.hidden // sizes.heads, num_experts=sizes.experts, num_experts_per_tok=sizes.top_k,
        norm_topk_prob=True, attn_implementation="sdpa", experts_implementation="grouped_mm",
    )  # fmt: skip
    model = Qwen3MoeForCausalLM(config).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.gate.weight.mul_(SHARPER)
    if context is not None:
        return Logits(autotune.nn.transformers.share_experts(model, context))
    return Logits(_shared_by_theirs(model, mesh, "all_to_all" if way == "plain" else _gathering()))


def _shared_by_theirs(model: Any, mesh: DeviceMesh, implementation: str) -> Any:
    """By transformers' own expert parallelism, with data-parallel attention."""
    from transformers.distributed.configuration_utils import DistributedConfig
    from transformers.distributed.expert_parallel import apply_expert_parallelism

    ranks = mesh.size()
    both = init_device_mesh(mesh.device_type, (ranks, 1), mesh_dim_names=("ep", "tp"))
    _, plan, _ = model._resolve_parallel_plans(DistributedConfig(ep_size=ranks, fsdp_size=ranks, tp_size=1))
    return apply_expert_parallelism(model, both["ep"], both["tp"], plan, ep_implementation=implementation)


def _gathering() -> str:
    """The name, in transformers' registry, of the way of fixed shapes."""
    from transformers.distributed.expert_parallel import EPImplementation, EPImplementationInterface

    class Gathered(EPImplementation):  # type: ignore[misc]
        def __call__(self, hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
            group, local = self.ep_mesh.get_group(), self.num_local_experts
            hidden, ids, weights = (all_gather_tensor(each, 0, group) for each in (hidden, ids, weights))
            others = (ids // local) != self.ep_mesh.get_local_rank()
            own = torch.where(others, local, ids % local)
            sums = self.experts_forward(hidden, own, weights.masked_fill(others, 0.0))
            return reduce_scatter_tensor(sums, "sum", 0, group)

    EPImplementationInterface.register("gathered", Gathered)
    return "gathered"
