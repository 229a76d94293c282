"""What the forwards of served models call on two ranks, read from their configs (the fields with sizes).

forwards.txt was checked by hand, line by line.

python tests/models/test_architectures.py    writes it anew
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import InputError
from autotune.models.architecture import architecture_of, read_architecture
from autotune.models.forward import Plan, forwards, left_out
from autotune.models.quantization import quantization_of
from autotune.results.figures import dashed

HERE = Path(__file__).parent
CONFIGS: dict[str, dict[str, Any]] = json.loads((HERE / "configs.json").read_text())
GOLDEN = HERE / "forwards.txt"
SIZES = (
    "m", "n", "k", "tokens", "hidden", "experts", "top_k", "width", "batch", "q_heads", "kv_heads", "kv_len", "dtype",
    "scales", "bias", "rope", "scale", "epilogue",
)  # fmt: skip
UNTOLD = (None, False, "none", "swiglu")
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def told(name: str) -> str:
    """A line for each problem of forwards of 16 and of 512 tokens, and of what is left out of them."""
    model = architecture_of(CONFIGS[name])
    plan = Plan(2, model.dtype or "bf16", quantization=model.quantization, contexts=(32768,))
    lines = [name, *(f"  left out: {part}, as it is stored" for part in left_out(model, plan))]
    try:
        found = forwards(model, plan, (16, 512))
    except InputError as error:
        return "\n".join([*lines, f"  {error}"])
    for call in (call for each in found for call in each.calls):
        fields = call.problem.as_dict()
        sizes = " ".join(f"{field}={fields[field]}" for field in SIZES if fields.get(field) not in UNTOLD)
        lines.append(f"  {call.count} x {call.layer}: {dashed(call.problem.workload)} {sizes}")
    return "\n".join(lines)


@pytest.mark.parametrize("name", CONFIGS)
def test_served_models_call(name: str) -> None:
    assert told(name) in GOLDEN.read_text().split("\n\n")


def test_another_type_may_be_given_and_a_refusal_says_so(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**CONFIGS["Llama-3.3-70B"], "model_type": "lama"}))
    with pytest.raises(InputError, match=re.escape("--as TYPE")) as refused:
        read_architecture(file)
    assert "autotune.collect()" in str(refused.value)
    assert read_architecture(file, "llama") == architecture_of(CONFIGS["Llama-3.3-70B"])


LAYERS = 8


@pytest.mark.parametrize(
    ("excluded", "kept"),
    [
        (["lm_head", "model.layers.0", "model.layers.7.mlp.down_proj"], set()),
        ([f"model.layers.{layer}.self_attn.o_proj" for layer in range(5)], {"attention"}),
        (["model.layers.*.self_attn", "model.embed_tokens"], {"attention"}),
        (["re:.*self_attn.*", "re:.*shared_experts"], {"attention", "shared experts"}),
        (["language_model.model.layers.*.mlp.experts.*"], {"experts"}),
        (["linear_attn", "mlp.shared_expert"], {"linear attention", "shared experts"}),
        (["model.layers"], {"attention", "linear attention", "mlp", "shared experts", "experts"}),
    ],
)
@pytest.mark.parametrize("field", ["modules_to_not_convert", "ignore"])
def test_parts_that_most_layers_exclude_keep_their_16_bits(field: str, excluded: list[str], kept: set[str]) -> None:
    found = quantization_of({"quantization_config": {**FP8, field: excluded}}, LAYERS)
    assert found is not None and found.kept == kept
    plan = Plan(2, "bf16", quantization=found)
    for part in ("attention", "experts"):
        wanted = {"dtype": "bf16", "scales": "none"} if part in kept else {"dtype": "fp8", "scales": "block"}
        assert plan.types(part) == wanted


def group(bits: int, kind: str, strategy: str, activations: int | None = 8) -> dict[str, Any]:
    inputs = None if activations is None else {"num_bits": activations, "type": kind, "strategy": "token"}
    weights = {"num_bits": bits, "type": kind, "strategy": strategy}
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"one": {"weights": weights, "input_activations": inputs}},
    }


@pytest.mark.parametrize(
    ("said", "scales"),
    [
        (FP8, "block"), ({"quant_method": "fp8"}, "tensor"), ({"quant_method": "fbgemm_fp8"}, "row"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "tensor"), (group(8, "float", "channel"), "row"),
        (group(8, "float", "block"), "block"), (group(8, "float", "tensor"), "tensor"),
        # No operator multiplies these:
        ({"quant_method": "fp8", "weight_block_size": [1, 32]}, None), (group(8, "int", "channel"), None),
        (group(4, "float", "tensor_group", 4), None), (group(8, "float", "channel", None), None),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, None), ({"quant_method": "awq", "bits": 4}, None),
        ({"quant_method": "mxfp4"}, None), ({"bits": 4}, None), ({"quant_method": "compressed-tensors"}, None),
        ({"quant_method": "compressed-tensors", "config_groups": ["one"]}, None),
        ({"quant_method": "compressed-tensors", "config_groups": {"one": {"weights": "fp8"}}}, None),
    ],
)  # fmt: skip
def test_weights_are_what_their_quantization_says_or_left_out(said: dict[str, Any], scales: str | None) -> None:
    found = quantization_of({"quantization_config": said}, LAYERS)
    assert found is not None and (found.dtype, found.scales) == (("fp8", scales) if scales else (None, "none"))


@pytest.mark.parametrize(
    "said", ["fp8", [1], {**FP8, "ignore": ["re:("]}, {**FP8, "ignore": [3]}, {**FP8, "ignore": 3}]
)
def test_what_is_no_quantization_is_refused(said: Any) -> None:
    with pytest.raises(InputError, match="quantization_config"):
        quantization_of({"quantization_config": said}, LAYERS)


if __name__ == "__main__":
    GOLDEN.write_text("\n\n".join(map(told, CONFIGS)) + "\n\n")
