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
from autotune.nn.block_fp8 import see_through


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


def fp8(url: str) -> dict[str, Any]:
    """A Llama in fp8 by blocks, whose ranks share it out: differences from the whole one, and what the pass found."""
    found: dict[str, Any] = {}
    with autotune.Context(HEAP, url=url) as context, torch.no_grad():
        device, ranks = context.heap.device, dist.get_world_size()
        mesh = init_device_mesh(device.type, (ranks,), mesh_dim_names=("tp",))
        tokens = torch.randint(0, 64, (2, 8), generator=torch.Generator().manual_seed(3)).to(device)
        whole_model = _of_blocks(device)
        for module in whole_model.modules():
            see_through(module)
        right = whole_model(tokens, use_cache=False).logits
        ours = autotune.nn.transformers.parallelize(_of_blocks(device), mesh, context)

        def forward(tokens: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = whole(ours(tokens, use_cache=False).logits)
            return logits

        found["eager"] = difference(forward(tokens), right)
        found["explained"] = [str(line) for line in autotune.explain(context, forward, tokens).lines]
        if device.type == "cuda":
            options = autotune.fusing(context, tune="40s")
            compiled = torch.compile(forward, options=options, dynamic=False)
            found["compiled"] = difference(compiled(tokens), right)
            found["lines"] = [str(line) for line in options["post_grad_custom_pre_pass"].lines]
        with autotune.nn.transformers.tuned(context):
            layer = _of_blocks(device).model.layers[0].mlp.down_proj
            _registry()["rowwise"].install_forward(layer, mesh)
        x = torch.ones((3, layer.in_features // ranks), device=device, dtype=right.dtype)
        for name, columns in ("weight", 1), ("weight_scale_inv", 1):
            part = getattr(layer, name).chunk(ranks, columns)[dist.get_rank()].contiguous()
            layer.register_parameter(name, torch.nn.Parameter(part, requires_grad=False))
        found["styled"] = bool(layer(x).isfinite().all())
        half_blocks = _of_blocks(device, intermediate_size=384)
        found["half blocks"] = said(lambda: autotune.nn.transformers.parallelize(half_blocks, mesh, context))
    return found


def _of_blocks(device: torch.device, intermediate_size: int = 1024) -> Any:
    from transformers import FineGrainedFP8Config, LlamaConfig, LlamaForCausalLM
    from transformers.integrations.finegrained_fp8 import FP8Linear, replace_with_fp8_linear

    config = LlamaConfig(
        hidden_size=512, intermediate_size=intermediate_size, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=4, head_dim=128, vocab_size=64, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(5)
    model = LlamaForCausalLM(config).to(torch.bfloat16 if device.type == "cuda" else torch.float32).eval()
    settings = FineGrainedFP8Config()
    model = replace_with_fp8_linear(model, ["lm_head"], quantization_config=settings, pre_quantized=True)
    for module in [each for each in model.modules() if isinstance(each, FP8Linear)]:
        weight = torch.randn(module.weight.shape) * 64
        scales = (1 + torch.rand(module.weight_scale_inv.shape)) / 64 / weight.shape[1] ** 0.5
        module.weight = torch.nn.Parameter(weight.to(module.weight.dtype), requires_grad=False)
        module.weight_scale_inv = torch.nn.Parameter(scales, requires_grad=False)
    return model.to(device)


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
