"""The sizes of a decoder, dense or with experts, read from the ``config.json`` of a Hugging Face model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from autotune.dtypes import DTYPES
from autotune.errors import InputError
from autotune.models.mixture import FIELDS, NAMES, Mixture, mixture_of
from autotune.suggestion import did_you_mean

Size = Annotated[int, Field(ge=1, le=2**31 - 1)]
Layers = Annotated[int, Field(ge=1, le=10_000)]


class Written(BaseModel):
    """The fields that are read; a config has many more."""

    model_config = ConfigDict(extra="allow", strict=True)

    model_type: str
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Layers
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    vocab_size: Size = 1
    attention_bias: bool = False
    mlp_bias: bool = False


@dataclass(frozen=True)
class Biases:
    """The linear layers with a bias."""

    qkv: bool = False
    out: bool = False
    mlp: bool = False


@dataclass(frozen=True)
class Kind:
    """A family of models: what its configs leave unsaid."""

    biases: Callable[[Written], Biases]
    head_dim: int | None = None
    """None: the hidden size by the heads."""
    attention: bool = True
    """False: of a form that no operator of ours computes."""


def _by_flags(written: Written) -> Biases:
    return Biases(written.attention_bias, written.attention_bias, written.mlp_bias)


KINDS: Mapping[str, Kind] = {
    "llama": Kind(_by_flags),
    "mistral": Kind(lambda written: Biases()),
    "qwen2": Kind(lambda written: Biases(qkv=True)),
    "qwen3": Kind(_by_flags, head_dim=128),
    "gemma": Kind(_by_flags, head_dim=256),
    "gemma2": Kind(_by_flags, head_dim=256),
    "gemma3_text": Kind(_by_flags, head_dim=256),
    "mixtral": Kind(lambda written: Biases()),
    "qwen2_moe": Kind(lambda written: Biases(qkv=True)),
    "qwen3_moe": Kind(_by_flags),
    "deepseek_v3": Kind(lambda written: Biases(), attention=False),
}
"""By ``model_type``. All have gated MLPs, and attention whose heads the ranks share out, unless it is left out."""


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
    """False: it is left out."""
    mixture: Mixture | None = None

    @property
    def mlps(self) -> list[tuple[str, int, int]]:
        """The MLPs that every token goes through: what their layers' names end in, the width, the layers with one."""
        found = [("", self.intermediate, self.layers - (self.mixture.layers if self.mixture else 0))]
        if self.mixture is not None:
            found.append((" of shared experts", self.mixture.shared, self.mixture.layers))
        return [(name, width, layers) for name, width, layers in found if width and layers]


def read_architecture(path: Path) -> Architecture:
    """Raises InputError that names the file, the field and what is allowed."""
    try:
        return architecture_of(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {error}; give a model's config.json") from error


def architecture_of(values: Any) -> Architecture:
    """Of a model of text and images the part for text alone."""
    if not isinstance(values, dict) or not (isinstance(values.get("model_type"), str)):
        raise InputError("no model_type; give the config.json of a Hugging Face model")
    text = values.get("text_config")
    if isinstance(text, dict) and values["model_type"] not in KINDS:
        return architecture_of({"torch_dtype": values.get("torch_dtype"), **text})
    name = values["model_type"]
    experts = [field for field in FIELDS if isinstance(values.get(field), int)]
    if experts and name not in NAMES:
        raise InputError(
            f"model_type {name}: a mixture of experts ({experts[0]}={values[experts[0]]}); known ones: "
            f"{', '.join(NAMES)}{did_you_mean(name, NAMES)}"
        )
    if name not in KINDS:
        raise InputError(f"model_type {name}: unknown; known: {', '.join(KINDS)}{did_you_mean(name, KINDS)}")
    return _architecture(_written(values), values)


def _written(values: Mapping[str, Any]) -> Written:
    try:
        return Written.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _architecture(written: Written, values: Mapping[str, Any]) -> Architecture:
    kind, heads = KINDS[written.model_type], written.num_attention_heads
    head_dim = written.head_dim or kind.head_dim
    if head_dim is None:
        if kind.attention and written.hidden_size % heads:
            raise InputError(
                f"num_attention_heads={heads} must divide hidden_size={written.hidden_size} where there is no head_dim"
            )
        head_dim = written.hidden_size // heads
    layers, has_experts = written.num_hidden_layers, written.model_type in NAMES
    said = str(values.get("dtype") or values.get("torch_dtype"))
    dtypes = {each.torch: name for name, each in DTYPES.items()}
    return Architecture(
        kind=written.model_type,
        layers=layers,
        hidden=written.hidden_size,
        heads=heads,
        kv_heads=written.num_key_value_heads or heads,
        head_dim=head_dim,
        intermediate=written.intermediate_size,
        vocabulary=written.vocab_size,
        biases=kind.biases(written),
        dtype=dtypes.get(said),
        attention=kind.attention,
        mixture=mixture_of(written.model_type, layers, values) if has_experts else None,
    )
