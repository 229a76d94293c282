"""Tiny mixtures of Hugging Face transformers on ranks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from shares import HEAP, difference, said
from torch.distributed.device_mesh import init_device_mesh

import autotune

SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 40, "max_position_embeddings": 64, "num_experts_per_tok": 2,
    "eos_token_id": None,
}  # fmt: skip
KINDS = {"ColwiseLinear", "ExpertParallel", "RowwiseLinear"}
QWEN = {"num_experts": 6, "moe_intermediate_size": 16, "head_dim": 8, "norm_topk_prob": True}


def made(kind: str, device: torch.device, **changed: Any) -> Any:
    """A model with the same random weights on every rank."""
    import transformers

    more = QWEN if kind == "Qwen3Moe" else {"num_local_experts": 4}
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **more, **changed})
    torch.manual_seed(5)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).to(device).eval()
    for name, parameter in model.named_parameters():
        if name.endswith(("gate_up_proj", "proj_bias")):  # drawn small: no gate would be clamped, no bias be seen
            torch.nn.init.normal_(parameter)
    return model


def loaded(context: autotune.Context, folder: Path, tokens: torch.Tensor) -> dict[str, Any]:
    """The same of a model that is read from a file as shards, and the ways in which its tokens reach experts."""
    from transformers import MixtralForCausalLM
    from transformers.distributed.configuration_utils import DistributedConfig
    from transformers.distributed.expert_parallel import EPImplementationInterface

    os.environ.setdefault("LOCAL_RANK", str(dist.get_rank()))  # torchrun sets it, and transformers reads it
    whole, ranks = made("Mixtral", tokens.device), dist.get_world_size()
    if dist.get_rank() == 0:
        whole.save_pretrained(folder / "mixtral")
    dist.barrier()
    with autotune.nn.transformers.tuned(context):
        config = DistributedConfig(tp_size=ranks, ep_size=ranks)
        ours = MixtralForCausalLM.from_pretrained(folder / "mixtral", distributed_config=config).eval()
    with autotune.collect() as problems:
        logits = ours(tokens).logits
    with torch.enable_grad():
        trained = ours(tokens).logits
    return {
        "loaded": difference(logits, whole(tokens).logits), "trained": difference(trained, whole(tokens).logits),
        "called": sorted({problem.workload for problem in problems}),
        "theirs again": EPImplementationInterface()["auto"].__name__,
    }  # fmt: skip


@torch.no_grad()
def mixtures(given: tuple[str, str]) -> dict[str, Any]:
    """Differences of the logits from the whole model's, by kind and by what the ranks share."""
    url, folder = given
    share = autotune.nn.transformers.share_experts
    with autotune.Context(HEAP, url=url) as context:
        device, ranks = context.heap.device, dist.get_world_size()
        mesh = init_device_mesh(device.type, (ranks,), mesh_dim_names=("tp",))
        torch.manual_seed(7)
        batches = torch.randint(0, 40, (ranks, 2, 5), device=device)
        own = batches[dist.get_rank()]
        found: dict[str, Any] = {}
        for kind in ("Mixtral", "Qwen3Moe", "GptOss"):
            whole, ours = made(kind, device), share(made(kind, device), context)
            found[kind] = difference(ours(own).logits, whole(own).logits)
            found[f"{kind} same names"] = whole.state_dict().keys() == ours.state_dict().keys()
            experts = [each for each in ours.modules() if isinstance(each, autotune.nn.ExpertParallel)]
            found[f"{kind} experts"] = [list(each.gate_up_proj.shape) for each in experts]
        both = share(made("Mixtral", device), context, replicated=True)
        both = autotune.nn.transformers.parallelize(both, mesh, context)
        found["both"] = difference(both(batches[0]).logits, made("Mixtral", device)(batches[0]).logits)
        found["both kinds"] = sorted({type(each).__name__ for each in both.modules()} & KINDS)
        found |= loaded(context, Path(folder), batches[0])
        found["refused"] = {
            "gelu": said(lambda: share(made("Mixtral", device, hidden_act="gelu"), context)),
            "limit": said(lambda: share(made("GptOss", device, swiglu_limit=5.0), context)),
            "dense": said(lambda: share(torch.nn.Linear(2, 2), context)),
        }
        return found
