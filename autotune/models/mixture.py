"""A model's experts, read from its ``config.json``, and the problems of a layer that has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.errors import InputError
from autotune.kernels.moe_dispatch_gemm.problem import MoeDispatchGemm
from autotune.kernels.moe_gemm_combine.problem import MoeGemmCombine
from autotune.problem import Problem

FIELDS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size")
"""Of a mixture of experts; a dense model has none of them."""


@dataclass(frozen=True)
class Names:
    """The fields of one kind of model."""

    experts: str
    width: str = "moe_intermediate_size"


NAMES: Mapping[str, Names] = {
    "mixtral": Names("num_local_experts", width="intermediate_size"),
    "qwen2_moe": Names("num_experts"),
    "qwen3_moe": Names("num_experts"),
    "deepseek_v3": Names("n_routed_experts"),
}
"""By ``model_type``. All have SwiGLU and no biases in their experts."""


@dataclass(frozen=True)
class Mixture:
    """The layers with experts."""

    layers: int
    experts: int
    top_k: int
    width: int
    shared: int
    """Width of the experts that every token goes to, all of them side by side; 0 without any."""

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
        yield "experts, gate, up", MoeDispatchGemm(**common)
        yield "experts, down", MoeGemmCombine(**common)


def mixture_of(kind: str, layers: int, values: Mapping[str, Any]) -> Mixture:
    """Of a config of one of ``NAMES``. Raises InputError that names the field."""
    names = NAMES[kind]
    first, dense = _number(values, "first_k_dense_replace"), values.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise InputError(f"mlp_only_layers={dense}: a list of layers is needed")
    step = _number(values, "decoder_sparse_step") or 1
    sparse = [each for each in range(first, layers) if each not in dense and (each + 1) % step == 0]
    width = _number(values, names.width, least=1)
    shared = _number(values, "n_shared_experts") * width
    return Mixture(
        layers=len(sparse),
        experts=_number(values, names.experts, least=1),
        top_k=_number(values, "num_experts_per_tok", least=1),
        width=width,
        shared=_number(values, "shared_expert_intermediate_size") or shared,
    )


def _number(values: Mapping[str, Any], name: str, least: int = 0) -> int:
    """A field; where it may be 0, it may also be absent."""
    found = values.get(name)
    if found is None and least == 0:
        return 0
    if not isinstance(found, int) or isinstance(found, bool) or found < least:
        raise InputError(f"{name}={found}: a whole number of at least {least} is needed")
    return found
