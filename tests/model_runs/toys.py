"""Measurements of toy layers that ranks find by their names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

import autotune
from autotune.model_runs.comparison import Comparison
from autotune.model_runs.layers import Layers
from autotune.model_runs.measured import ModelLayers


@dataclass(frozen=True)
class ThenWrong(ModelLayers):
    """Its rows, the problems of all operators that were called, and rows with a wrong expert on the last rank."""

    wrong: bool = False

    def rows(self, context: autotune.Context) -> Iterator[Any]:
        with autotune.collect() as problems:
            yield from super().rows(context)
        if not self.wrong:
            yield dict(problems)
            yield from replace(self, wrong=True).rows(context)

    def built(self, comparison: Comparison, way: str, sharded: bool) -> Layers:
        made = super().built(comparison, way, sharded)
        if self.wrong and way == "styles" and comparison.mesh.get_local_rank() == self.ranks - 1:
            with torch.no_grad():
                made.layers[0].mlp.down_proj[0].neg_()
        return made
