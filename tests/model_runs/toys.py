"""Measurements of toy layers that ranks find by their names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch.distributed.tensor.debug import CommDebugMode

import autotune
from autotune.model_runs.comparison import Comparison
from autotune.model_runs.layers import Layers
from autotune.model_runs.measured import ModelLayers


@dataclass(frozen=True)
class Collectives(ModelLayers):
    """Its rows: the library's collectives in one layer's experts, for each number of tokens and way."""

    def rows(self, context: autotune.Context) -> Iterator[Any]:
        comparison = Comparison(context)
        for tokens in self.tokens:
            sharded = self.plan.sequence_parallel(tokens)
            x = torch.ones(1, tokens // self.ranks if sharded else tokens, self.model.hidden)
            for way in comparison.ways():
                made: Any = comparison.model(way, x.dtype, partial(self.built, comparison, way, sharded))
                with torch.no_grad(), CommDebugMode() as seen:
                    made.layers[0].mlp(x)
                counts = {str(name).split(".")[-1]: count for name, count in seen.get_comm_counts().items()}
                yield {"tokens": tokens, "way": way, "counts": counts}


@dataclass(frozen=True)
class ThenWrong(ModelLayers):
    """Its rows, not compiled, the problems of all operators that were called, and rows with wrong experts on the last
    rank.
    """

    wrong: bool = False

    def rows(self, context: autotune.Context) -> Iterator[Any]:
        with torch.compiler.set_stance("force_eager"):
            with autotune.collect() as problems:
                yield from super().rows(context)
            yield set(problems)
            yield from ModelLayers.rows(replace(self, wrong=True), context)

    def built(self, comparison: Comparison, way: str, sharded: bool) -> Layers:
        made = super().built(comparison, way, sharded)
        if self.wrong and way == "styles" and comparison.mesh.get_local_rank() == self.ranks - 1:
            cast(Any, made.layers[0]).mlp.down_proj.data.neg_()
        return made
