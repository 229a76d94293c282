"""The sizes of a decoder, dense or with experts, read from the ``config.json`` of a Hugging Face model."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune.dtypes import DTYPES
from autotune.errors import InputError
from autotune.files import text_of
from autotune.models.fields import flag, real_number, whole_number, whole_value
from autotune.models.mixture import FIELDS, NAMES, Mixture, mixture_of
from autotune.models.quantization import Quantization, quantization_of
from autotune.models.windows import Rule, Window, between_others, every_layer, late_layers, window_of

MOST_LAYERS = 10_000

OF_THE_WHOLE = ("dtype", "torch_dtype", "quantization_config")
"""Fields that a model of images and text has outside its text part."""

OTHERWISE = (
    "; --as TYPE takes it for one of these, if it has the same layers; else list what the live model calls by "
    "autotune.collect(), and give the list"
)

Values = Mapping[str, Any]
"""A config's fields, of which a few are read."""


@dataclass(frozen=True)
class Biases:
    qkv: bool = False
    out: bool = False
    mlp: bool = False


@dataclass(frozen=True)
class Kind:
    """A family of models: what its configs leave unsaid."""

    biases: Callable[[Values], Biases]
    head_dim: int | None = None
    """None: the hidden size by the heads."""
    attention: bool = True
    """False: of a form that no operator of ours computes; decode over a latent cache apart."""
    latent: bool = False
    """True: the cache is a latent of ``kv_lora_rank`` and ``qk_rope_head_dim`` elements, read as a whole."""
    windowed: Rule | None = None
    """None: every layer attends to all tokens."""
    soft_cap: bool = False
    """True: ``attn_logit_softcapping`` is read."""
    gated: bool = False
    """True: the queries' projection has a gate of its width beside them."""
    intermediate: str = "intermediate_size"
    """The field of the dense layers' width."""
    unsaid: Values = field(default_factory=dict)
    """Fields that a config, above all the text part of a model of images and text, leaves out where they are
    transformers' defaults. A null is no default: as many KV heads as heads.
    """


def _by_flags(values: Values) -> Biases:
    attention = flag(values, "attention_bias")
    return Biases(attention, attention, flag(values, "mlp_bias"))


def _none(values: Values) -> Biases:
    return Biases()


NO_WINDOW = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
"""Qwen's: there is one where the first of these is true."""

_QWEN2 = Kind(lambda values: Biases(qkv=True), windowed=late_layers, unsaid={"num_key_value_heads": 32, **NO_WINDOW})
_MLA = Kind(
    _none, attention=False, latent=True,
    unsaid={
        "first_k_dense_replace": 3, "n_shared_experts": 1, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
    },
)  # fmt: skip

KINDS: Mapping[str, Kind] = {
    "llama": Kind(_by_flags),
    "phi3": Kind(_none, windowed=every_layer),
    "mistral": Kind(
        _none, windowed=every_layer, unsaid={"num_key_value_heads": 8, "sliding_window": 4096}
    ),
    **dict.fromkeys(("qwen2", "qwen2_5_vl", "qwen2_5_vl_text"), _QWEN2),
    "qwen3": Kind(_by_flags, head_dim=128, windowed=late_layers, unsaid={"num_key_value_heads": 32, **NO_WINDOW}),
    "gemma": Kind(_by_flags, head_dim=256, unsaid={"num_key_value_heads": 16}),
    "gemma2": Kind(
        _by_flags, head_dim=256, windowed=between_others, soft_cap=True,
        unsaid={
            "num_key_value_heads": 4, "sliding_window": 4096, "sliding_window_pattern": 2, "attn_logit_softcapping": 50,
        },
    ),
    "gemma3_text": Kind(
        _by_flags, head_dim=256, windowed=between_others, soft_cap=True,
        unsaid={
            "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262_208, "sliding_window": 4096,
            "sliding_window_pattern": 6,
        },
    ),
    "mixtral": Kind(_none, windowed=every_layer, unsaid={"num_key_value_heads": 8}),
    "qwen2_moe": Kind(
        lambda values: Biases(qkv=flag(values, "qkv_bias")), windowed=late_layers,
        unsaid={
            "num_key_value_heads": 16, "qkv_bias": True, "shared_expert_intermediate_size": 5632, **NO_WINDOW,
        },
    ),
    "qwen3_moe": Kind(_by_flags, windowed=every_layer, unsaid={"num_key_value_heads": 4, **NO_WINDOW}),
    "qwen3_next": Kind(
        _by_flags, head_dim=256, gated=True, unsaid={"num_key_value_heads": 2, "full_attention_interval": 4},
    ),
    "glm4_moe": Kind(
        lambda values: Biases(qkv=flag(values, "attention_bias")), head_dim=128,
        unsaid={"first_k_dense_replace": 1, "n_shared_experts": 1},
    ),
    "gpt_oss": Kind(
        _by_flags, head_dim=64, windowed=between_others,
        unsaid={"attention_bias": True, "num_key_value_heads": 8, "sliding_window": 128, "sliding_window_pattern": 2},
    ),
    "llama4_text": Kind(
        _by_flags, head_dim=128, windowed=between_others, intermediate="intermediate_size_mlp",
        unsaid={
            "num_key_value_heads": 8, "n_shared_experts": 1, "attention_chunk_size": 8192, "sliding_window_pattern": 4,
        },
    ),
    **dict.fromkeys(("deepseek_v3", "kimi_k2"), _MLA),
    "deepseek_v32": replace(_MLA, latent=False),  # it reads a few tokens that it selects
}  # fmt: skip
"""Kinds by ``model_type``. All have gated MLPs, and attention whose heads are sharded, unless it is left out."""


@dataclass(frozen=True)
class LinearAttention:
    """Linear attention (a gated delta rule) in the place of attention, as Qwen3-Next has in most layers."""

    layers: int
    inputs: int
    """Columns of the projection to queries, keys, values and gates."""
    output: int
    """Depth of the projection back."""


@dataclass(frozen=True)
class Latent:
    """What a cache of latents has of a token, and how queries are multiplied with it, the projection absorbed."""

    rank: int
    rope: int
    scale: float


@dataclass(frozen=True)
class Architecture:
    kind: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    biases: Biases
    dtype: str | None
    """The element type that the config names; None where it names none of ours."""
    attention: bool = True
    window: Window | None = None
    """None: every layer attends to all tokens."""
    soft_cap: int = 0
    """Soft cap of the attention's logits; 0: none."""
    mixture: Mixture | None = None
    linear: LinearAttention | None = None
    """Layers that have one in the place of attention."""
    latent: Latent | None = None
    """What layers cache whose attention is left out in all else."""
    gated: bool = False
    """True: the queries' projection has a gate of its width beside them."""
    quantization: Quantization | None = None

    @property
    def attending(self) -> int:
        """Layers with attention over all of their tokens' keys."""
        return self.layers - (self.linear.layers if self.linear else 0)

    @property
    def mlps(self) -> list[tuple[str, int, int]]:
        """The MLPs that every token goes through: what their layers' names end in, the width, the layers with one."""
        found = [("", self.intermediate, self.layers - (self.mixture.layers if self.mixture else 0))]
        if self.mixture is not None:
            found.append((" of shared experts", self.mixture.shared, self.mixture.layers))
        return [(name, width, layers) for name, width, layers in found if width and layers]

    def layers_over(self, context: int) -> int:
        """The layers that attend to so many tokens."""
        return self.attending - (self.window.layers if self.window is not None and self.window.tokens < context else 0)


def read_architecture(path: Path, kind: str | None = None) -> Architecture:
    """``kind``: the ``model_type`` to take it for. Raises InputError: the file, the field, what is allowed."""
    try:
        return architecture_of(json.loads(text_of(path)), kind)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {error}; give a model's config.json") from error


def architecture_of(values: Any, kind: str | None = None) -> Architecture:
    """Read a config.json, taken for one of ``kind`` if that is given; of a model of text and images the text part."""
    if not isinstance(values, dict) or not (isinstance(values.get("model_type"), str)):
        raise InputError("no model_type; give the config.json of a Hugging Face model")
    text = values.get("text_config")
    if isinstance(text, dict) and (values["model_type"] not in KINDS or "hidden_size" not in values):
        return architecture_of({**{each: values.get(each) for each in OF_THE_WHOLE}, **text}, kind)
    name = kind or values["model_type"]
    experts = [field for field in FIELDS if values.get(field)]
    if experts and name not in NAMES:
        raise InputError(
            f"model_type {name}: a mixture of experts ({experts[0]}={values[experts[0]]}); known ones: "
            f"{', '.join(NAMES)}{OTHERWISE}"
        )
    if name not in KINDS:
        raise InputError(f"model_type {name}: unknown; known: {', '.join(KINDS)}{OTHERWISE}")
    return _architecture(name, values)


def _architecture(name: str, values: Values) -> Architecture:
    kind = KINDS[name]
    values = {**kind.unsaid, **values}
    hidden, heads = whole_number(values, "hidden_size"), whole_number(values, "num_attention_heads")
    layers = whole_number(values, "num_hidden_layers", most=MOST_LAYERS)
    said = str(values.get("dtype") or values.get("torch_dtype"))
    dtypes = {each.torch: name for name, each in DTYPES.items()}
    return Architecture(
        kind=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=whole_number(values, "num_key_value_heads", heads),
        head_dim=_head_dim(kind, values, hidden, heads),
        intermediate=whole_number(values, kind.intermediate),
        vocabulary=whole_number(values, "vocab_size", 1),
        biases=kind.biases(values),
        dtype=dtypes.get(said),
        attention=kind.attention,
        window=window_of(values, layers, kind.windowed) if kind.attention else None,
        soft_cap=whole_value(values, "attn_logit_softcapping") if kind.soft_cap else 0,
        mixture=mixture_of(name, layers, values) if name in NAMES else None,
        linear=_linear_attention(layers, values) if name == "qwen3_next" else None,
        latent=_latent(values) if kind.latent else None,
        gated=kind.gated,
        quantization=quantization_of(values, layers),
    )


def _linear_attention(layers: int, values: Values) -> LinearAttention:
    key, value = (
        whole_number(values, f"linear_num_{name}_heads") * whole_number(values, f"linear_{name}_head_dim")
        for name in ("key", "value")
    )
    types, interval = values.get("layer_types"), whole_number(values, "full_attention_interval")
    linear = types[:layers].count("linear_attention") if isinstance(types, list) else layers - layers // interval
    return LinearAttention(linear, 2 * key + 2 * value, value)


def _latent(values: Values) -> Latent:
    """With YaRN's factor for long contexts the logits are larger, in training as in decoding."""
    rope = whole_number(values, "qk_rope_head_dim")
    scale = float((whole_number(values, "qk_nope_head_dim") + rope) ** -0.5)
    stretched = values.get("rope_scaling") or values.get("rope_parameters")
    stretched = stretched if isinstance(stretched, dict) else {}
    factor, mscale = (real_number(stretched, name) for name in ("factor", "mscale_all_dim"))
    if mscale and factor > 1:
        scale *= (0.1 * mscale * math.log(factor) + 1) ** 2
    return Latent(whole_number(values, "kv_lora_rank"), rope, scale)


def _head_dim(kind: Kind, values: Values, hidden: int, heads: int) -> int:
    """Raises InputError where neither the config nor the kind says it, and heads do not divide the hidden size."""
    by_heads = kind.head_dim or hidden // heads
    found = whole_number(values, "head_dim", by_heads)
    if values.get("head_dim") is None and kind.head_dim is None and kind.attention and hidden % heads:
        raise InputError(f"num_attention_heads={heads} must divide hidden_size={hidden} where there is no head_dim")
    return found
