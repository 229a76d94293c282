"""A tiny Llama of Hugging Face transformers on ranks."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from shares import HEAP, difference, said, whole
from torch.distributed.device_mesh import init_device_mesh

import autotune


def llama(given: tuple[str, str]) -> dict[str, Any]:
    """Differences of the model by our styles from the whole model: logits, gradients, loaded from a file, generated."""
    url, folder = given
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.distributed.configuration_utils import DistributedConfig

    sizes: dict[str, Any] = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 40, "max_position_embeddings": 64, "use_cache": True,
        "attention_bias": True, "eos_token_id": None,
    }  # fmt: skip
    config = LlamaConfig(**sizes)
    found: dict[str, Any] = {}
    with autotune.Context(HEAP, url=url) as context:
        device, ranks = context.heap.device, dist.get_world_size()
        mesh = init_device_mesh(device.type, (ranks,), mesh_dim_names=("tp",))
        torch.manual_seed(5)
        plain = LlamaForCausalLM(config).to(device).eval()
        tokens = torch.randint(0, 40, (2, 7), device=device)
        right = plain(tokens, labels=tokens)
        right.loss.backward()
        torch.manual_seed(5)
        ours = autotune.nn.transformers.parallelize(LlamaForCausalLM(config).to(device).eval(), mesh, context)
        found["kinds"] = kinds(ours)
        result = ours(tokens, labels=tokens)
        found["logits"] = difference(result.logits, right.logits)
        result.loss.backward()
        pairs = zip(ours.parameters(), plain.parameters(), strict=True)
        found["gradients"] = max(difference(mine.grad, other.grad) for mine, other in pairs)
        with torch.no_grad():
            found["inference"] = difference(ours(tokens).logits, right.logits)
        options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
        same = ours.generate(tokens, **options) == plain.generate(tokens, **options)
        found["generated"] = bool(same.all())
        os.environ.setdefault("LOCAL_RANK", str(dist.get_rank()))  # torchrun sets it, and transformers reads it
        if dist.get_rank() == 0:
            plain.save_pretrained(Path(folder, "llama"))
        dist.barrier()
        with autotune.nn.transformers.tuned(context):
            loaded = LlamaForCausalLM.from_pretrained(
                Path(folder, "llama"), distributed_config=DistributedConfig(tp_size=ranks)
            ).eval()
        with torch.no_grad():
            found["loaded"] = difference(loaded(tokens.to(loaded.device)).logits, right.logits)
        found["loaded kinds"] = kinds(loaded)
        found["shards"] = sorted({tuple(whole(p).shape) == tuple(p.shape) for p in loaded.parameters()})
        found["tied"] = tied(
            LlamaConfig(**sizes, tie_word_embeddings=True),
            tokens,
            lambda model: autotune.nn.transformers.parallelize(model, mesh, context),
        )
        found["theirs again"] = type(_registry()["colwise"]).__module__
        found["no plan"] = said(lambda: autotune.nn.transformers.parallelize(_Planless(), mesh, context))
    return found


def tied(config: Any, tokens: torch.Tensor, parallelized: Callable[[Any], Any]) -> float:
    """The largest difference of logits and gradients where the head has the embedding's weight."""
    from transformers import LlamaForCausalLM

    found = []
    for change in (lambda model: model, parallelized):
        torch.manual_seed(5)
        model = change(LlamaForCausalLM(config).to(tokens.device))
        assert model.lm_head.weight is model.model.embed_tokens.weight
        result = model(tokens, labels=tokens)
        result.loss.backward()
        found.append([result.logits, *(each.grad for each in model.parameters())])
    return max(difference(mine, other) for mine, other in zip(found[1], found[0], strict=True))


def kinds(model: torch.nn.Module) -> list[str]:
    """The kinds of its linear layers."""
    return sorted({type(module).__name__ for module in model.modules() if "Linear" in type(module).__name__})


def _registry() -> Any:
    from transformers.distributed.tensor_parallel import ALL_PARALLEL_STYLES

    return ALL_PARALLEL_STYLES


class _Planless:
    tp_plan: dict[str, str] = {}
