"""A model's forwards on ranks: layers of its sizes under PyTorch's own tensor-parallel plan, and under ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from autotune.errors import InputError
from autotune.models.architecture import Architecture
from autotune.models.forward import Forward, Plan, forwards
from autotune.outcome import DEFAULT_REGIME, Regime
from autotune.workloads import workload

if TYPE_CHECKING:
    import torch

    from autotune.model_runs.comparison import Comparison, Row
    from autotune.runtime.context import Context

SPARE_BYTES = 64 << 20
"""Spare heap bytes per rank, beside the operators' workspaces."""

LAYERS = 4
"""Layers built by default. They are alike, and fit beside each other in three ways."""

MEASURED_DTYPES = ("bf16", "fp16", "fp32")
"""Dtypes that PyTorch's tensor-parallel styles take."""


@dataclass(frozen=True)
class Order:
    """The forwards to measure; the same on every rank."""

    model: Architecture
    """Architecture with as many layers as are built, and no head."""
    of_layers: int
    """The layers of the whole model."""
    plan: Plan
    tokens: tuple[int, ...]
    url: str | None = None
    """Database with the tuned configs; None: the user's."""
    regime: Regime = DEFAULT_REGIME
    tolerance: float | None = None
    """Largest relative difference of the results; None: the usual one."""

    @property
    def forwards(self) -> list[Forward]:
        """One for each number of tokens."""
        return forwards(self.model, self.plan, self.tokens)

    @property
    def heap_bytes(self) -> int:
        """Bytes per rank: the operators of one forward keep their workspaces side by side."""
        needed = (
            sum(workload(each.workload).heap_bytes(each) for each in {call.problem for call in forward.calls})
            for forward in self.forwards
        )
        return max(needed) + SPARE_BYTES


def order_of(
    model: Architecture, plan: Plan, tokens: tuple[int, ...], layers: int | None, url: str | None, regime: Regime
) -> Order:  # fmt: skip
    """The order for some layers of a model, by default ``LAYERS``. Raises InputError for what is not measured."""
    layers = min(LAYERS, model.layers) if layers is None else layers
    if layers > model.layers:
        raise InputError(f"--layers {layers}: the model has {model.layers}; allowed: 1 to {model.layers}")
    if plan.dtype not in MEASURED_DTYPES:
        raise InputError(
            f"--measure with {plan.dtype}: PyTorch's styles, the plain side, take {', '.join(MEASURED_DTYPES)} alone"
        )
    if model.mixture is not None or not model.attention:
        raise InputError(f"--measure: it builds dense layers, not those of {model.kind}")
    if plan.contexts:
        raise InputError("--measure with --context: attention over a KV cache is not part of what it builds")
    return Order(replace(model, layers=layers, vocabulary=0), model.layers, plan, tokens, url, regime)


def measured(order: Order, context: Context) -> Iterator[Row]:
    """A row for each forward, with its ``tokens``, those without sequence parallelism first; collective.

    Raises WrongResult where outputs differ: nothing is claimed then.
    """
    import torch

    from autotune.model_runs.comparison import TOLERANCE, Comparison

    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 512
    comparison = Comparison(context)
    allowed = TOLERANCE if order.tolerance is None else order.tolerance
    for sharded in (False, True):
        tokens = [each for each in order.tokens if order.plan.sequence_parallel(each) == sharded]
        if tokens:
            models = {way: _model(order, comparison, way, sharded) for way in comparison.ways()}
            for count in tokens:
                x = _input(order, comparison, count, sharded)
                yield {"tokens": count, **comparison.forwards(models, x, allowed)}
                context.release()
            models.clear()
            comparison.forget()


def _model(order: Order, comparison: Comparison, way: str, sharded: bool) -> Any:
    """One way's layers, shared out and compiled."""
    from torch.distributed.tensor.parallel import parallelize_module

    from autotune.model_runs.layers import Layers, plan
    from autotune.nn.styles import tuned

    chosen = plan(order.plan.separate, sharded)
    if way == "styles":
        chosen = tuned(chosen, comparison.context)
    with comparison.built(_dtype(order)):
        made = Layers(order.model, order.plan.ranks, order.plan.separate)
        parallelize_module(made, comparison.mesh, chosen)
    comparison.compiled(way, *made.layers)
    return made


def _input(order: Order, comparison: Comparison, count: int, sharded: bool) -> torch.Tensor:
    """One sequence of tokens, of which this rank has its part; or a decode step of as many sequences, on every rank."""
    import torch

    generator = torch.Generator().manual_seed(5)
    shape = (1, count) if sharded else (count, 1)
    x = torch.randn(*shape, order.model.hidden, generator=generator)
    if sharded:
        x = x.chunk(order.plan.ranks, dim=1)[comparison.context.heap.rank]
    return x.contiguous().to(comparison.device, _dtype(order))


def _dtype(order: Order) -> torch.dtype:
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[order.plan.dtype]
