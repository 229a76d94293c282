"""vLLM's row-parallel linear layer, with ``gemm_all_reduce`` where a model is not compiled."""

from __future__ import annotations

import functools
from typing import Any

import torch
from vllm.distributed import get_tp_group
from vllm.model_executor.custom_op import op_registry_oot
from vllm.model_executor.layers.linear import RowParallelLinear, UnquantizedLinearMethod

from autotune.compiled.served import turned
from iris_autotune_vllm import tables
from iris_autotune_vllm.operators import ours
from iris_autotune_vllm.settings import LOG

NAME = "RowParallelLinear"

BIASED: set[tuple[int, int]] = set()
"""Weights [k_local, n] of layers whose bias vLLM's first rank alone adds, before the sum: in the other ranks' graphs
such a GEMM has none, so none of the ranks may take it.
"""


class TunedRowParallelLinear(RowParallelLinear):
    """Its ``forward`` runs our operator; in a graph it is as it was, and our pass finds what it left there."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._table = tables.join() if self.tp_size > 1 else None
        if self.reduce_results and self.bias is not None and not self.skip_bias_add:
            BIASED.add((self.input_size_per_partition, self.output_size))

    def forward(self, input_: torch.Tensor) -> Any:
        if torch.compiler.is_compiling() or input_.dim() != 2 or not self._ours:
            return super().forward(input_)
        operands = {"a": input_, "b": turned(self.weight), "bias": None if self.skip_bias_add else self.bias}
        result = ours("gemm_all_reduce", get_tp_group().unique_name, operands)
        if result is None:
            return super().forward(input_)
        return (result, self.bias if self.skip_bias_add else None) if self.return_bias else result

    @functools.cached_property
    def _ours(self) -> bool:
        """By what all ranks share; known at the first call, when the weights are where they stay."""
        if self._table is None:
            return False
        reasons = {
            "its results are not reduced": not self.reduce_results,
            "its input is not sharded": not self.input_is_parallel,
            f"its weights are of {type(self.quant_method).__name__}": (
                type(self.quant_method) is not UnquantizedLinearMethod
            ),
            "its weights are packed": tuple(self.weight.shape) != (self.output_size, self.input_size_per_partition),
        }
        left = ", ".join(reason for reason, holds in reasons.items() if holds)
        LOG.info_once("iris-autotune: %s %s", NAME, f"left: {left}" if left else "taken where it is not compiled")
        return not left


def register() -> None:
    known = op_registry_oot.get(NAME)
    if known is None:
        RowParallelLinear.register_oot(name=NAME)(TunedRowParallelLinear)
    elif known is not TunedRowParallelLinear:
        LOG.warning("iris-autotune: another plugin has %s already (%s): off", NAME, known.__qualname__)
