"""A model's experts, read from its ``config.json``, and the problems of a layer that has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.dtypes import FP8
from autotune.kernels.moe_dispatch_gemm.problem import MoeDispatchGemm
from autotune.kernels.moe_gemm_combine.problem import MoeGemmCombine
from autotune.models.fields import layer_numbers, whole_number
from autotune.problem import Problem

FIELDS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size")
"""Fields of a mixture of experts; a dense model has none of them."""


@dataclass(frozen=True)
class Names:
    experts: str
    width: str = "moe_intermediate_size"
    experts_since: str = ""
    """The experts' name in configs that newer versions of transformers have written."""
    form: Mapping[str, Any] = field(default_factory=dict)
    """What differs from SwiGLU and no biases: fields of the first problem."""


NAMES: Mapping[str, Names] = {
    "mixtral": Names("num_local_experts", width="intermediate_size"),
    "qwen2_moe": Names("num_experts"),
    "qwen3_moe": Names("num_experts", experts_since="num_local_experts"),
    "qwen3_next": Names("num_experts"),
    **dict.fromkeys(("deepseek_v3", "deepseek_v32", "kimi_k2", "glm4_moe"), Names("n_routed_experts")),
    "llama4_text": Names("num_local_experts", width="intermediate_size"),
    "gpt_oss": Names(
        "num_local_experts", width="intermediate_size",
        form={"epilogue": "swiglu_oai", "gate_up": "interleaved", "bias": True, "b_order": "kn"},
    ),
}  # fmt: skip
"""Names by ``model_type``."""


@dataclass(frozen=True)
class Mixture:
    layers: int
    experts: int
    top_k: int
    width: int
    shared: int
    """Width of the experts that every token goes to, all of them side by side; 0 without any."""
    form: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the first problem that differ from their defaults."""

    def problems(
        self, hidden: int, tokens: int, ranks: int, dtype: str, scales: str, zipf: float, by_width: bool
    ) -> Iterator[tuple[str, Problem]]:  # fmt: skip
        """The two of one layer, with their names, for the ``tokens`` of all ranks together, of which each has a share.

        ``by_width``: each rank has a part of every expert's width, which counts as an expert of its own. ``zipf`` is
        the exponent of the experts' popularity, 0 where all are equally popular. Raises InvalidProblem.
        """
        parts = ranks if by_width else 1
        common: dict[str, Any] = {
            "tokens": -(-tokens // ranks), "hidden": hidden, "experts": self.experts * parts,
            "top_k": self.top_k * parts, "width": self.width // parts, "routing": "zipf" if zipf else "uniform",
            "exponent": zipf, "world_size": ranks, "dtype": dtype, "scales": scales,
        }  # fmt: skip
        form = {name: value for name, value in self.form.items() if name != "b_order" or dtype not in FP8}
        of_both = {name: form[name] for name in ("bias", "b_order") if name in form}
        yield "experts, gate, up", MoeDispatchGemm(**common, **form)
        yield "experts, down", MoeGemmCombine(**common, **of_both)


def mixture_of(kind: str, layers: int, values: Mapping[str, Any]) -> Mixture:
    """Read the config of one of ``NAMES``. Raises InputError that names the field."""
    names = NAMES[kind]
    first, step = (
        whole_number(values, "first_k_dense_replace", 0, least=0),
        whole_number(values, "decoder_sparse_step", whole_number(values, "interleave_moe_layer_step", 1)),
    )
    frequency = whole_number(values, "moe_layer_freq", 1)
    dense = layer_numbers(values, "mlp_only_layers")
    sparse = [
        each
        for each in range(first, layers)
        if each not in dense and (each + 1) % step == 0 and each % frequency == 0
    ]  # fmt: skip
    width = whole_number(values, names.width)
    shared = whole_number(values, "n_shared_experts", 0, least=0) * width
    return Mixture(
        layers=len(sparse),
        experts=whole_number(values, names.experts_since if names.experts_since in values else names.experts),
        top_k=whole_number(values, "num_experts_per_tok"),
        width=width,
        shared=whole_number(values, "shared_expert_intermediate_size", 0, least=0) or shared,
        form=names.form,
    )
