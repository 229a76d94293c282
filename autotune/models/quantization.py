"""A config's ``quantization_config``: element type and scales of a model's linear layers, and which keep theirs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.dtypes import SCALE_BLOCK
from autotune.errors import InputError

BY_STRATEGY = {"tensor": "tensor", "channel": "row", "block": "block"}
"""Our scales by what compressed-tensors calls those of weights."""

EXCLUDING = ("modules_to_not_convert", "ignore", "exclude_modules")
"""Fields that list modules which keep their 16 bits."""

PARTS: Mapping[str, Sequence[str]] = {
    "attention": ("self_attn.o_proj", "self_attn.q_proj"), "linear attention": ("linear_attn.out_proj",),
    "mlp": ("mlp.down_proj",), "shared experts": ("mlp.shared_experts.down_proj", "mlp.shared_expert.down_proj"),
    "experts": ("mlp.experts.0.down_proj", "block_sparse_moe.experts.0.w2"),
}  # fmt: skip
"""Parts of a layer that are quantized alike, by names of modules in them."""

ROOTS = ("model", "language_model.model", "model.language_model")
"""Where a model's layers are, in one of text and in those of images and text."""


@dataclass(frozen=True)
class Quantization:
    method: str
    dtype: str | None
    """None: a form that none of our operators multiplies, such as weights of 4 bits."""
    scales: str = "none"
    kept: frozenset[str] = frozenset()
    """Parts in the model's own 16 bits."""


def quantization_of(values: Mapping[str, Any], layers: int) -> Quantization | None:
    """None where the weights are as the config's ``dtype`` says. Raises InputError for what is no such field."""
    said = values.get("quantization_config")
    if not said:
        return None
    if not isinstance(said, Mapping):
        raise InputError(f"quantization_config={said!r}: a JSON object is needed")
    scales = _scales(said)
    listed = [said.get(field) or [] for field in EXCLUDING]
    if not all(isinstance(each, list) and all(isinstance(name, str) for name in each) for each in listed):
        raise InputError(f"quantization_config: {', '.join(EXCLUDING)} are lists of modules' names")
    names = [name for each in listed for name in each]
    return Quantization(
        str(said.get("quant_method")), "fp8" if scales else None, scales or "none", _kept(names, layers)
    )


def _scales(said: Mapping[str, Any]) -> str | None:
    """The scales of fp8, None where it is something else."""
    match said.get("quant_method"):
        case "fp8":
            block = said.get("weight_block_size")
            return "tensor" if block is None else "block" if block == [SCALE_BLOCK] * 2 else None
        case "fbgemm_fp8":
            return "row"
        case "modelopt":
            return "tensor" if said.get("quant_algo") == "FP8" else None
        case "compressed-tensors":
            group = _object(next(iter(_object(said.get("config_groups")).values()), None))
            weights, activations = (_object(group.get(name)) for name in ("weights", "input_activations"))
            of_8_bits = [(each.get("num_bits"), each.get("type")) == (8, "float") for each in (weights, activations)]
            return BY_STRATEGY.get(str(weights.get("strategy"))) if all(of_8_bits) else None
    return None


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _kept(names: Sequence[str], layers: int) -> frozenset[str]:
    """The parts of which these names exclude most layers' modules."""
    if not names:
        return frozenset()
    # Regular expressions need only match a name's beginning, as in compressed-tensors.
    written = [each[3:] if each.startswith("re:") else rf"(?:.*\.)?{_pattern(each)}(?:\..*)?\Z" for each in names]
    try:
        excluded = re.compile("|".join(f"(?:{each})" for each in written))
    except re.error as error:
        raise InputError(f"quantization_config: {error} among the modules that it excludes") from error

    def keeps(module: str) -> bool:
        count = sum(any(excluded.match(f"{root}.layers.{each}.{module}") for root in ROOTS) for each in range(layers))
        return 2 * count > layers

    return frozenset(part for part, modules in PARTS.items() if any(map(keeps, modules)))


def _pattern(name: str) -> str:
    """A module's name with ``*`` for anything."""
    return ".*".join(map(re.escape, name.split("*")))
