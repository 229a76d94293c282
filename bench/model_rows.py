"""What a rank of bench/model_layers.py does: a client's models by each way, from the same weights; calls and times."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from model_clients import PHASES, Phase, Sizes, mixture, pytorch, transformers
from torch import nn
from torch.distributed.tensor import DTensor

import autotune
from autotune.model_runs.comparison import PLAIN, Comparison, Row, row
from autotune.outcome import DEFAULT_REGIME, Regime

Tensor = torch.Tensor

CLIENTS = {"pytorch": pytorch, "transformers": transformers, "mixture": mixture}

EAGER = {"mixture": ("plain",)}
"""By client: the ways that cannot be captured."""

LOSS_TOLERANCE = 1e-2
"""Largest difference of a training step's loss from plain's, as a share of plain's first loss. With every hundredth
weight moved by a bit, plain is 4e-3 away from itself once it knows its one batch by heart, while its losses, by then
near zero, differ by a fifth.
"""

GRADIENT_TOLERANCE = 5e-2
"""Largest distance of a parameter's first gradient from plain's, over its norm: AdamW, and so the losses, do not see a
gradient that is wrong by a factor. With every hundredth weight moved by a bit, plain is 1e-2 away from itself.
"""

LEARNING_RATE = 1e-5
"""So small that the losses still fall at the last step."""


@dataclass(frozen=True)
class ModelRows:
    client: str
    sizes: Sizes
    phases: tuple[str, ...]
    ways: tuple[str, ...]
    ranks: int
    heap_bytes: int
    url: str | None
    done: frozenset[tuple[str, int]]
    """Phases and numbers of tokens that an earlier run has measured."""
    times: bool = True
    """False: only the calls of our operators, by problem; nothing is compiled."""
    regime: Regime = DEFAULT_REGIME

    def rows(self, context: autotune.Context) -> Iterator[Row]:
        """A row for each phase and size that is not done. Collective."""
        comparison = Comparison(context)
        with torch.compiler.set_stance("default" if self.times else "force_eager"):
            for phase in [each for each in PHASES[self.client] if each.name in self.phases]:
                left = [m for m in getattr(self.sizes, phase.sizes) if (phase.name, m) not in self.done]
                ways = self.ways if left and not phase.training else ()
                models = {way: self._model(comparison, phase, way) for way in ways}
                for m in left:
                    begun = time.monotonic()
                    measured = self._training if phase.training else self._inference
                    found = measured(comparison, phase, m, models)
                    yield {"phase": phase.name, "tokens": m, **found, "seconds": time.monotonic() - begun}
                models.clear()
                comparison.forget()

    def _model(self, comparison: Comparison, phase: Phase, way: str) -> nn.Module:
        """One way's, shared out and compiled: as a whole for training, as a backward from an eager part into a compiled
        one breaks DTensors.
        """
        context = comparison.context if way == "styles" else None
        build = CLIENTS[self.client]
        return comparison.model(
            way, torch.bfloat16 if comparison.on_gpu else torch.float32,
            lambda: build(self.sizes, phase, comparison.mesh, context, way), whole=phase.training,
        )  # fmt: skip

    def _inference(self, comparison: Comparison, phase: Phase, count: int, models: dict[str, nn.Module]) -> Row:
        shape = (count, 1) if phase.sizes == "decode" else (1, count)
        tokens = self._tokens(comparison, shape, phase.own_tokens)
        if not self.times:
            with torch.no_grad():
                return calls(*[lambda model=model: model(tokens) for model in models.values()])  # type: ignore[misc]
        return comparison.forwards(models, tokens, eager=EAGER.get(self.client, ()))

    def _training(self, comparison: Comparison, phase: Phase, count: int, _: dict[str, nn.Module]) -> Row:
        """Losses over all steps and the first one's gradients, then the times of some more."""
        tokens = self._tokens(comparison, (1, count + 1))
        dtensors = self.client == "pytorch"  # transformers leaves the norms' weights plain tensors
        steps = {way: Step(self._model(comparison, phase, way), tokens, foreach=dtensors) for way in self.ways}
        if not self.times:
            return calls(*[step.first for step in steps.values()])
        for step in steps.values():
            step.first()
        plain = steps[PLAIN]
        gradients = comparison.check(
            {way: step.gradients_from(plain) for way, step in steps.items()}, GRADIENT_TOLERANCE
        )
        for step in steps.values():
            step.gradients.clear()
        losses = {way: [step.loss, *(float(step()) for _ in range(1, self.sizes.steps))] for way, step in steps.items()}
        errors = {
            way: max(abs(a - b) for a, b in zip(mine, losses[PLAIN], strict=True)) / plain.loss
            for way, mine in losses.items()
        }
        worst = comparison.check(errors, LOSS_TOLERANCE)
        return {**row(comparison.clock.busy(steps, 1), worst), "gradients": gradients, "losses": losses}

    def _tokens(self, comparison: Comparison, shape: tuple[int, int], own: bool = False) -> Tensor:
        """Random token numbers, the same on every rank; with ``own`` each rank's differ."""
        generator = torch.Generator().manual_seed(5 + (dist.get_rank() if own else 0))
        return torch.randint(0, self.sizes.vocabulary, shape, generator=generator).to(comparison.device)


def calls(*forwards: Callable[[], Any]) -> Row:
    with autotune.collect() as called:
        for forward in forwards:
            forward()
    return {"calls": dict(called)}


class Step:
    """A training step of one model, always with the same tokens: forward, backward and AdamW."""

    def __init__(self, model: nn.Module, tokens: Tensor, foreach: bool) -> None:
        self.model, self.tokens = model, tokens
        self.optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, foreach=foreach)
        self.loss = math.nan
        self.gradients: dict[str, Tensor] = {}

    def __call__(self, _: int = 0) -> Tensor:
        loss = self._backward()
        self._update()
        return loss

    def first(self) -> None:
        """A step after which ``loss`` and ``gradients``, this rank's share of each, are there."""
        self.loss = float(self._backward())
        self.gradients = {name: own_share(parameter) for name, parameter in self.model.named_parameters()}
        self._update()

    def gradients_from(self, plain: Step) -> float:
        """The largest distance of a parameter's first gradient from plain's, over the norm of that."""
        return max(
            float((mine.float() - right.float()).norm() / right.float().norm())
            for mine, right in ((self.gradients[name], right) for name, right in plain.gradients.items())
        )

    def _backward(self) -> Tensor:
        logits = self.model(self.tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), self.tokens[:, 1:].flatten())
        loss.backward()
        return loss.detach()

    def _update(self) -> None:
        self.optimiser.step()
        self.optimiser.zero_grad()


def own_share(parameter: nn.Parameter) -> Tensor:
    """This rank's share of the parameter's gradient, laid out as the parameter is."""
    gradient = parameter.grad
    assert gradient is not None
    if isinstance(parameter, DTensor) and isinstance(gradient, DTensor):
        gradient = gradient.redistribute(placements=parameter.placements).to_local()
    return gradient.clone()
