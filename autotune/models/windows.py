"""Layers whose attention sees a window of the last tokens alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.models.fields import flag, whole_number

Rule = Callable[[Mapping[str, Any], int], bool]
"""True if a layer, by its number, has a window; for configs that do not list the layers' types."""


CHUNK = "attention_chunk_size"
"""Llama 4's: a token attends to those before it in its chunk of so many."""


@dataclass(frozen=True)
class Window:
    tokens: int
    layers: int


def every_layer(values: Mapping[str, Any], layer: int) -> bool:
    return True


def between_others(values: Mapping[str, Any], layer: int) -> bool:
    """All but the last of each so many layers."""
    return (layer + 1) % whole_number(values, "sliding_window_pattern") != 0


def late_layers(values: Mapping[str, Any], layer: int) -> bool:
    return layer >= whole_number(values, "max_window_layers", least=0)


def window_of(values: Mapping[str, Any], layers: int, rule: Rule | None) -> Window | None:
    """None where every layer sees all tokens, as without a rule. Raises InputError that names the field."""
    tokens = whole_number(values, CHUNK if CHUNK in values else "sliding_window", 0, least=0)
    if rule is None or not tokens or ("use_sliding_window" in values and not flag(values, "use_sliding_window")):
        return None
    types = values.get("layer_types")
    if isinstance(types, list):
        count = sum(each in ("sliding_attention", "chunked_attention") for each in types[:layers])
    else:
        count = sum(rule(values, layer) for layer in range(layers))
    return Window(tokens, count) if count else None
