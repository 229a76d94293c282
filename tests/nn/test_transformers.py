"""A Llama of Hugging Face transformers, its own tensor-parallel plan on our styles; mixtures, by our experts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from calls import said
from ranks_of_functions import run_ranks
from shares import HEAP, difference, whole
from torch.distributed.device_mesh import init_device_mesh
from two_ranks import A_GPU_EACH

import autotune
from autotune.nn.block_fp8 import see_through


@pytest.mark.parametrize("gpu", A_GPU_EACH)
def test_a_llama_by_its_own_plan_is_the_whole_one(gpu: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers", minversion="5.17")
    argument = (f"sqlite:///{tmp_path / 'none.db'}", str(tmp_path))
    for found in run_ranks(__file__, "llama", 2, tmp_path, gpu=gpu, argument=argument):
        for name in ("kinds", "loaded kinds"):
            assert found[name] == ["ColwiseLinear", "RowwiseLinear"]
        for name in ("logits", "gradients", "inference", "loaded", "tied"):
            assert found[name] < 2e-5, found
        assert found["generated"] and found["shards"] == [True]
        assert found["theirs again"].startswith("transformers.")
        assert found["no plan"].startswith("InputError")


@pytest.mark.parametrize("gpu", A_GPU_EACH)
def test_a_llama_in_fp8_by_blocks_goes_through_the_pass(gpu: str, tmp_path: Path) -> None:
    """Each rounds other sums to fp8 here and there, where a sum lies in the middle; on GPUs of bf16."""
    pytest.importorskip("transformers", minversion="5.17")
    for found in run_ranks(__file__, "fp8", 2, tmp_path, gpu=gpu, argument=f"sqlite:///{tmp_path / 'none.db'}"):
        assert found["eager"] < (0.12 if gpu else 0.01), found
        told = [line for line in found["explained"] if "gemm-all-reduce m=16 n=512 k=1024 dtype=fp8" in line]
        assert len(told) == 4 and all("scales=block" in line for line in told), found["explained"]
        assert all("gemm-all-reduce-norm-quantised" in line for line in told[:3]), "the last norm is not quantised"
        assert found["styled"] and found["half blocks"].startswith("InputError")
        if gpu:
            assert found["compiled"] < 0.12, found
            assert sum(": replaced: mode " in line for line in found["lines"]) >= 2, found["lines"]


@pytest.mark.parametrize("gpu", A_GPU_EACH)
def test_a_mixture_whose_experts_ranks_share_out_is_the_whole_one(gpu: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers", minversion="5.23")
    argument = (f"sqlite:///{tmp_path / 'none.db'}", str(tmp_path))
    for found in run_ranks(__file__, "mixtures", 2, tmp_path, gpu=gpu, argument=argument):
        for name in ("Mixtral", "Qwen3Moe", "GptOss", "both", "loaded", "trained"):
            assert found[name] < 2e-5, found
        assert all(found[f"{kind} same names"] for kind in ("Mixtral", "Qwen3Moe", "GptOss"))
        assert found["Mixtral experts"] == [[2, 48, 32]] * 2 and found["Qwen3Moe experts"] == [[3, 32, 32]] * 2
        assert found["both kinds"] == ["ColwiseLinear", "ExpertParallel", "RowwiseLinear"]
        assert found["called"] == ["gemm_all_reduce", "moe_dispatch_gemm", "moe_gemm_combine"]
        assert found["theirs again"] == "AutoEP"
        assert all(told.startswith("InputError") for told in found["refused"].values())


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
