"""Small configs of models, as Hugging Face writes them, and the problems that ``tune model --list`` finds in one."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import Bench

from autotune.fleet.problem_list import parse_list

LLAMA = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 3,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1000, "torch_dtype": "float16",
}  # fmt: skip
MIXTRAL: dict[str, Any] = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
QWEN: dict[str, Any] = {
    "model_type": "qwen2_moe", "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 256, "mlp_only_layers": [0],
}  # fmt: skip
BY_WIDTH = ("--experts-by-width",)
DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3", "n_routed_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 128,
    "n_shared_experts": 2, "first_k_dense_replace": 1, "num_attention_heads": 7,
}  # fmt: skip


def config(folder: Path, **changed: Any) -> str:
    """A config.json, with these fields changed; None leaves one out."""
    values = {name: value for name, value in {**LLAMA, **changed}.items() if value is not None}
    file = folder / "config.json"
    file.write_text(json.dumps(values))
    return str(file)


def written(folder: Path, *entries: str) -> str:
    """A list of these problems."""
    file = folder / "list.yaml"
    file.write_text(f"problems: [{', '.join(entries)}]")
    return str(file)


def each_takes(seconds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of a command's problems, by the clock of its budget."""
    clock = SimpleNamespace(monotonic=itertools.count(0, seconds).__next__)
    monkeypatch.setattr("autotune.cli.commands.model_job.time", clock)


def listed(bench: Bench, file: str, *words: str) -> dict[str, dict[str, Any]]:
    """The problems of ``--list``, by workload and sizes."""
    result = bench.tune("model", file, "--list", *words)
    assert result.exit_code == 0, result.output
    found = {}
    for asked in parse_list(result.stdout):
        fields = asked.problem.as_dict()
        names = ("tokens", "hidden", "experts", "top_k", "width") if "experts" in fields else ("m", "n", "k")
        sizes = tuple(fields[name] for name in names if name in fields)
        found[f"{asked.workload.name} {sizes}"] = {**fields, "calls": asked.calls}
    return found
