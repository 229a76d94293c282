"""A model's layers on ranks: of its sizes, under PyTorch's own tensor-parallel plan, and under ours."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autotune.dtypes import DTYPES
from autotune.errors import InputError
from autotune.kernels.moe_dispatch_gemm.problem import MoeDispatchGemm
from autotune.models.architecture import Architecture
from autotune.models.forward import Forward, Plan, forwards
from autotune.outcome import DEFAULT_REGIME, Regime
from autotune.workloads import workload

if TYPE_CHECKING:
    from autotune.heap.arena import SymmetricHeap
    from autotune.model_runs.comparison import Comparison, Row
    from autotune.model_runs.layers import Layers
    from autotune.runtime.context import Context

SPARE_BYTES = 64 << 20
"""Spare heap bytes per rank, beside the operators' workspaces."""

LAYERS = 4
"""Layers built by default. They are alike, and fit beside each other in three ways."""


@dataclass(frozen=True)
class ModelLayers:
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

    @classmethod
    def of(
        cls, model: Architecture, plan: Plan, tokens: tuple[int, ...], layers: int | None, url: str | None,
        regime: Regime,
    ) -> ModelLayers:  # fmt: skip
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
        if unbuilt := _unbuilt(model):
            raise InputError(f"--measure: it does not build {', '.join(unbuilt)}, as {model.kind} has")
        if plan.contexts:
            raise InputError("--measure with --context: attention over a KV cache is not part of what it builds")
        if mixture := model.mixture:
            _check_experts(plan)
            mixture = replace(mixture, layers=layers)
        some = replace(model, layers=layers, vocabulary=0, mixture=mixture)
        return cls(some, model.layers, plan, tokens, url, regime)

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

        from autotune.kernels.launching.tensors import TORCH_DTYPES
        from autotune.model_runs.comparison import Comparison

        comparison, dtype = Comparison(context), TORCH_DTYPES[self.plan.dtype]
        for sharded in (False, True):
            tokens = [each for each in self.tokens if self.plan.sequence_parallel(each) == sharded]
            ways = comparison.ways() if tokens else ()
            builds = {way: functools.partial(self.built, comparison, way, sharded) for way in ways}
            models = {way: comparison.model(way, dtype, build) for way, build in builds.items()}
            for count in tokens:
                # One sequence, of which this rank has its part; or a decode step of as many, on every rank.
                shape = (1, count) if sharded else (count, 1)
                x = torch.randn(*shape, self.model.hidden, generator=torch.Generator().manual_seed(5))
                x = x.chunk(self.ranks, dim=1)[context.heap.rank] if sharded else x
                x = x.contiguous().to(comparison.device, dtype)
                if self.model.mixture is not None:
                    self._route(models.values(), count, sharded, context.heap)
                yield {"tokens": count, **comparison.forwards(models, x)}
                context.release()
            models.clear()
            if tokens:
                comparison.forget()

    def _route(self, models: Iterable[Layers], count: int, sharded: bool, heap: SymmetricHeap) -> None:
        """Send tokens to experts as in the problem that was tuned: random routers may reach a tenth fewer, or more, and
        the weights of each that is reached are read.
        """
        from autotune.kernels.moe.routing import typical_routing
        from autotune.model_runs.layers import Mixture

        (forward,) = forwards(self.model, self.plan, (count,))
        problem = next(call.problem for call in forward.calls if isinstance(call.problem, MoeDispatchGemm))
        for layers in models:
            mixtures = (module for module in layers.modules() if isinstance(module, Mixture))
            for number, mixture in enumerate(mixtures):
                ids = typical_routing(problem, heap.device, number).ids
                mixture.choose(ids[heap.rank][None] if sharded else ids.flatten(0, 1)[:count, None])

    def built(self, comparison: Comparison, way: str, sharded: bool) -> Layers:
        """A way's layers, shared out over the ranks; ``sharded``: these share the tokens out, too."""
        from torch.distributed.tensor.parallel import parallelize_module

        from autotune.model_runs.layers import Layers, Mixture, mixture_plan, plan
        from autotune.nn.styles import tuned

        model, separate, ours = self.model, self.plan.separate, way == "styles"
        context = comparison.context if ours else None
        if model.mixture is None:
            chosen, mixture = plan(separate, sharded), None
        else:
            chosen = mixture_plan(separate, sharded, bool(model.mixture.shared), plain=not ours)
            mixture = functools.partial(Mixture, model, comparison.mesh, separate, sharded, context)
        made = Layers(model, self.ranks, separate, mixture)
        parallelize_module(made, comparison.mesh, tuned(chosen, context) if context is not None else chosen)
        return made


def _unbuilt(model: Architecture) -> list[str]:
    """The parts of a model's layers that are not built."""
    mixture = model.mixture
    parts = {
        "latent attention (MLA)": not model.attention,
        "linear attention": model.linear is not None,
        "dense layers beside those with experts": mixture is not None and mixture.layers < model.layers,
        "experts with biases": mixture is not None and "bias" in mixture.form,
    }
    return [name for name, has in parts.items() if has]


def _check_experts(plan: Plan) -> None:
    """Raise InputError for experts that are not measured."""
    if plan.dtype != "bf16":
        raise InputError(
            f"--measure with {plan.dtype}: PyTorch's grouped GEMM, the plain side, takes bf16; use --dtype bf16"
        )
    if plan.experts_by_width:
        raise InputError("--measure with --experts-by-width: it builds whole experts")
