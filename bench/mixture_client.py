"""A mixture of Hugging Face transformers with random weights, its experts on ranks by others' ways or ours.

Each rank forwards its own tokens, with all of attention. The ways: "plain" is transformers' own all-to-all, whose sizes
the host reads; "gathered" is the one of fixed shapes that serving stacks take: all ranks' tokens are gathered, each
rank runs its experts on all of them, and the sums are reduce-scattered; "styles" is ``share_experts``.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from model_clients import Logits, Phase, Sizes
from torch import nn
from torch.distributed._functional_collectives import all_gather_tensor, reduce_scatter_tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import autotune
from autotune.model_runs.layers import SHARPER

Tensor = torch.Tensor

MIXTURE = Sizes(
    hidden=4096, ffn=1536, heads=64, kv_heads=4, vocabulary=4096, layers=2, prefill=(512, 2048), decode=(1, 8, 32, 128),
    experts=128, top_k=8,
)  # fmt: skip
"""Sizes of Qwen3-235B-A22B, but for layers and vocabulary."""

TINY_MIXTURE = Sizes(
    hidden=32, ffn=16, heads=4, kv_heads=2, vocabulary=24, layers=1, prefill=(8,), decode=(2,), experts=4, top_k=2,
)  # fmt: skip


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
