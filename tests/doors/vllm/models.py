"""A Llama and a Mixtral of two layers with random weights, as vLLM loads them from a folder."""

from __future__ import annotations

import json
from pathlib import Path

import torch

HIDDEN, WIDTH, LAYERS, HEADS, KV_HEADS, HEAD, VOCABULARY = 128, 256, 2, 4, 2, 32, 256
EXPERTS, EXPERT = 4, 128

CONFIG = {
    "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD, "vocab_size": VOCABULARY, "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
    "hidden_act": "silu", "torch_dtype": "float32", "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
KINDS = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "intermediate_size": WIDTH},
    "mixtral": {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "intermediate_size": EXPERT,
                "num_local_experts": EXPERTS, "num_experts_per_tok": 2},
}  # fmt: skip

ATTENTION = {
    "q_proj": (HEADS * HEAD, HIDDEN), "k_proj": (KV_HEADS * HEAD, HIDDEN), "v_proj": (KV_HEADS * HEAD, HIDDEN),
    "o_proj": (HIDDEN, HEADS * HEAD),
}  # fmt: skip
MLP = {"gate_proj": (WIDTH, HIDDEN), "up_proj": (WIDTH, HIDDEN), "down_proj": (HIDDEN, WIDTH)}
MOE = {"w1": (EXPERT, HIDDEN), "w3": (EXPERT, HIDDEN), "w2": (HIDDEN, EXPERT)}


def make(folder: Path, kind: str) -> Path:
    """A folder with config.json and one file of weights."""
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(0)
    shapes = {"model.embed_tokens": (VOCABULARY, HIDDEN), "lm_head": (VOCABULARY, HIDDEN)}
    norms = ["model.norm"]
    for at in (f"model.layers.{layer}" for layer in range(LAYERS)):
        norms += [f"{at}.input_layernorm", f"{at}.post_attention_layernorm"]
        shapes |= {f"{at}.self_attn.{name}": shape for name, shape in ATTENTION.items()}
        if kind == "llama":
            shapes |= {f"{at}.mlp.{name}": shape for name, shape in MLP.items()}
        else:
            moe = f"{at}.block_sparse_moe"
            shapes[f"{moe}.gate"] = (EXPERTS, HIDDEN)
            experts = range(EXPERTS)
            shapes |= {f"{moe}.experts.{each}.{name}": shape for each in experts for name, shape in MOE.items()}
    weights = {
        f"{name}.weight": torch.randn(shape, generator=generator) / shape[1] ** 0.5 for name, shape in shapes.items()
    }
    weights |= {f"{name}.weight": 1 + torch.rand(HIDDEN, generator=generator) / 4 for name in norms}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG | KINDS[kind]))
    return folder
