"""Modules and tensor-parallel styles whose GEMMs and collectives are our operators, with gradients; and experts.

up = autotune.nn.ColumnParallelLinear.from_linear(linear, context, sequence_dim=1)
parallelize_module(model, mesh, autotune.nn.tuned(plan, context))      the plan of a tensor-parallel PyTorch model
model = autotune.nn.transformers.parallelize(model, mesh, context)     a model of Hugging Face transformers
experts = autotune.nn.ExpertParallel.from_experts(experts, context)    the experts of a mixture, shared out over ranks
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.nn import transformers
    from autotune.nn.experts import ExpertParallel, expert_parallel, routed
    from autotune.nn.linear import ColumnParallelLinear, RowParallelLinear
    from autotune.nn.styles import ColwiseParallel, RowwiseParallel, tuned

__all__ = [
    "ColumnParallelLinear",
    "ColwiseParallel",
    "ExpertParallel",
    "RowParallelLinear",
    "RowwiseParallel",
    "expert_parallel",
    "routed",
    "transformers",
    "tuned",
]

_HOMES = {
    "ColumnParallelLinear": "autotune.nn.linear",
    "ColwiseParallel": "autotune.nn.styles",
    "ExpertParallel": "autotune.nn.experts",
    "RowParallelLinear": "autotune.nn.linear",
    "RowwiseParallel": "autotune.nn.styles",
    "expert_parallel": "autotune.nn.experts",
    "routed": "autotune.nn.experts",
    "tuned": "autotune.nn.styles",
}


def __getattr__(name: str) -> Any:
    """Load a public name's module on first use: DTensor and transformers take seconds."""
    if name == "transformers":
        return importlib.import_module("autotune.nn.transformers")
    if name not in _HOMES:
        raise AttributeError(f"module 'autotune.nn' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOMES[name]), name)
