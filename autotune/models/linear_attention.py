"""Layers with linear attention (a gated delta rule) in the place of attention, as Qwen3-Next has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.models.fields import whole_number


@dataclass(frozen=True)
class LinearAttention:
    layers: int
    inputs: int
    """Columns of the projection to queries, keys, values and gates."""
    output: int
    """Depth of the projection back."""


def linear_attention_of(layers: int, values: Mapping[str, Any]) -> LinearAttention:
    """Raises InputError that names the field."""
    key, value = (
        whole_number(values, f"linear_num_{name}_heads") * whole_number(values, f"linear_{name}_head_dim")
        for name in ("key", "value")
    )
    types, interval = values.get("layer_types"), whole_number(values, "full_attention_interval")
    linear = types[:layers].count("linear_attention") if isinstance(types, list) else layers - layers // interval
    return LinearAttention(linear, 2 * key + 2 * value, value)
