"""``tune model`` of mixtures of experts: which layers are which, and the problems of their experts."""

from __future__ import annotations

from pathlib import Path

from fakes import Bench
from model_configs import DEEPSEEK, LLAMA, QWEN, config, listed


def test_a_mixtures_dense_and_shared_layers_are_counted(gpus: Bench, tmp_path: Path) -> None:
    found = listed(gpus, config(tmp_path, **QWEN), "--tp", "2", "--tokens", "256")
    assert {name: each["calls"] for name, each in found.items()} == {
        "all_gather_gemm (256, 768, 512)": 3, "gemm_reduce_scatter (256, 512, 512)": 3,
        "all_gather_gemm (256, 4096, 512)": 1, "gemm_reduce_scatter (256, 512, 2048)": 1,
        "all_gather_gemm (256, 512, 512)": 2, "gemm_reduce_scatter (256, 512, 256)": 2,
        "moe_dispatch_gemm (128, 512, 16, 4, 128)": 2, "moe_gemm_combine (128, 512, 16, 4, 128)": 2,
    }  # fmt: skip
    less = listed(gpus, config(tmp_path, **QWEN, decoder_sparse_step=2, qkv_bias=False), "--tp", "2", "--tokens", "256")
    assert found["all_gather_gemm (256, 768, 512)"]["bias"] and not less["all_gather_gemm (256, 768, 512)"]["bias"]
    assert less["moe_gemm_combine (128, 512, 16, 4, 128)"]["calls"] == 1


def test_experts_are_read_as_transformers_writes_them(gpus: Bench, tmp_path: Path) -> None:
    """Its newer versions write Qwen3-MoE's experts by another name, and leave defaults out of a text part."""
    qwen = {"model_type": "qwen3_moe", "num_experts_per_tok": 4, "moe_intermediate_size": 128}
    for name in ("num_experts", "num_local_experts"):
        found = listed(gpus, config(tmp_path, **qwen, **{name: 16}), "--tp", "2", "--tokens", "256")
        assert found["moe_gemm_combine (128, 512, 16, 4, 128)"]["calls"] == 3
    text = {**LLAMA, **DEEPSEEK, "num_hidden_layers": 9}
    for changed, experts, shared in (
        ({"first_k_dense_replace": None, "n_shared_experts": None}, 6, 128),
        ({"moe_layer_freq": 2}, 4, 256),
    ):
        values = {name: value for name, value in {**text, **changed}.items() if value is not None}
        file = config(tmp_path, **{**dict.fromkeys(LLAMA), "model_type": "of_images", "text_config": values})
        found = listed(gpus, file, "--tp", "2", "--tokens", "8")
        assert {name: each["calls"] for name, each in found.items()} == {
            "gemm_all_reduce (8, 512, 2048)": 9 - experts, f"gemm_all_reduce (8, 512, {shared})": experts,
            "moe_dispatch_gemm (4, 512, 64, 8, 128)": experts, "moe_gemm_combine (4, 512, 64, 8, 128)": experts,
        }  # fmt: skip
