"""A dense model's layers on ranks: of its sizes, under PyTorch's own tensor-parallel plan, and under ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autotune.dtypes import DTYPES
from autotune.errors import InputError
from autotune.models.architecture import Architecture
from autotune.models.forward import Forward, Plan, forwards
from autotune.outcome import DEFAULT_REGIME, Regime
from autotune.workloads import workload

if TYPE_CHECKING:
    from autotune.model_runs.comparison import Row
    from autotune.runtime.context import Context

SPARE_BYTES = 64 << 20
"""Spare heap bytes per rank, beside the operators' workspaces."""

LAYERS = 4
"""Layers built by default. They are alike, and fit beside each other in three ways."""


@dataclass(frozen=True)
class DenseLayers:
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

    @classmethod
    def of(
        cls, model: Architecture, plan: Plan, tokens: tuple[int, ...], layers: int | None, url: str | None,
        regime: Regime,
    ) -> DenseLayers:  # fmt: skip
        """Some layers of a model, by default ``LAYERS``. Raises InputError for what is not measured."""
        layers = min(LAYERS, model.layers) if layers is None else layers
        if layers > model.layers:
            raise InputError(f"--layers {layers}: the model has {model.layers}; allowed: 1 to {model.layers}")
        stored = plan.quantization
        dtype = stored.dtype or stored.method if stored is not None else plan.dtype
        if dtype not in DTYPES:
            raise InputError(
                f"--measure with {dtype}: PyTorch's styles, the plain side, take {', '.join(DTYPES)} alone; --dtype "
                "says which"
            )
        if model.mixture is not None or not model.attention:
            raise InputError(f"--measure: it builds dense layers, not those of {model.kind}")
        if plan.contexts:
            raise InputError("--measure with --context: attention over a KV cache is not part of what it builds")
        return cls(replace(model, layers=layers, vocabulary=0), model.layers, plan, tokens, url, regime)

    @property
    def forwards(self) -> list[Forward]:
        """One for each number of tokens."""
        return forwards(self.model, self.plan, self.tokens)

    @property
    def ranks(self) -> int:
        return self.plan.ranks

    @property
    def heap_bytes(self) -> int:
        """Bytes per rank: the operators of one forward keep their workspaces side by side."""
        needed = (
            sum(workload(each.workload).heap_bytes(each) for each in {call.problem for call in forward.calls})
            for forward in self.forwards
        )
        return max(needed) + SPARE_BYTES

    def rows(self, context: Context) -> Iterator[Row]:
        """A row for each forward, with its ``tokens``, those without sequence parallelism first; collective.

        Raises WrongResult where outputs differ: nothing is claimed then.
        """
        import torch
        from torch.distributed.tensor.parallel import parallelize_module

        from autotune.kernels.launching.tensors import TORCH_DTYPES
        from autotune.model_runs.comparison import TOLERANCE, Comparison
        from autotune.model_runs.layers import Layers, plan
        from autotune.nn.styles import tuned

        comparison, dtype = Comparison(context), TORCH_DTYPES[self.plan.dtype]

        def build(way: str, sharded: bool) -> Layers:
            chosen = plan(self.plan.separate, sharded)
            made = Layers(self.model, self.ranks, self.plan.separate)
            parallelize_module(made, comparison.mesh, tuned(chosen, context) if way == "styles" else chosen)
            return made

        for sharded in (False, True):
            tokens = [each for each in self.tokens if self.plan.sequence_parallel(each) == sharded]
            ways = comparison.ways() if tokens else ()
            models = {way: comparison.model(way, dtype, lambda way=way: build(way, sharded)) for way in ways}  # type: ignore[misc]  # noqa: B023
            for count in tokens:
                # One sequence, of which this rank has its part; or a decode step of as many, on every rank.
                shape = (1, count) if sharded else (count, 1)
                x = torch.randn(*shape, self.model.hidden, generator=torch.Generator().manual_seed(5))
                x = x.chunk(self.ranks, dim=1)[context.heap.rank] if sharded else x
                x = x.contiguous().to(comparison.device, dtype)
                allowed = TOLERANCE if self.tolerance is None else self.tolerance
                yield {"tokens": count, **comparison.forwards(models, x, allowed)}
                context.release()
            models.clear()
            if tokens:
                comparison.forget()
