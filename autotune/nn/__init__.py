"""Modules and tensor-parallel styles whose GEMMs and collectives are our operators, with gradients; and experts.

up = autotune.nn.ColumnParallelLinear.from_linear(linear, context, sequence_dim=1)
parallelize_module(model, mesh, autotune.nn.tuned(plan, context))      the plan of a tensor-parallel PyTorch model
model = autotune.nn.transformers.parallelize(model, mesh, context)     a model of Hugging Face transformers
experts = autotune.nn.ExpertParallel.from_experts(experts, context)    the experts of a mixture, shared out over ranks
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.lazily import loading

if TYPE_CHECKING:
    from autotune.nn import transformers as transformers
    from autotune.nn.experts import GPT_OSS as GPT_OSS
    from autotune.nn.experts import ExpertForm as ExpertForm
    from autotune.nn.experts import ExpertParallel as ExpertParallel
    from autotune.nn.experts import expert_parallel as expert_parallel
    from autotune.nn.experts import routed as routed
    from autotune.nn.linear import ColumnParallelLinear as ColumnParallelLinear
    from autotune.nn.linear import RowParallelLinear as RowParallelLinear
    from autotune.nn.styles import ColwiseParallel as ColwiseParallel
    from autotune.nn.styles import RowwiseParallel as RowwiseParallel
    from autotune.nn.styles import tuned as tuned

_HOMES = {
    "ColumnParallelLinear": "autotune.nn.linear",
    "ColwiseParallel": "autotune.nn.styles",
    "ExpertForm": "autotune.nn.experts",
    "ExpertParallel": "autotune.nn.experts",
    "GPT_OSS": "autotune.nn.experts",
    "RowParallelLinear": "autotune.nn.linear",
    "RowwiseParallel": "autotune.nn.styles",
    "expert_parallel": "autotune.nn.experts",
    "routed": "autotune.nn.experts",
    "transformers": "autotune.nn.transformers",
    "tuned": "autotune.nn.styles",
}

__all__ = sorted(_HOMES)

__getattr__ = loading(__name__, _HOMES)
"""DTensor and transformers take seconds to load."""
