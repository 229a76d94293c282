"""A context by itself, on one rank: whose winners its operators get."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist

import autotune
from autotune.errors import InputError
from autotune.runtime import context as module


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_operators_get_what_was_tuned_for_the_contexts_regime(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    look_up = module.lookup
    monkeypatch.setattr(module, "lookup", lambda *names, **how: asked.append(how["regime"]) or look_up(*names, **how))
    problem = autotune.GemmAllReduce(m=16, n=32, k=32, dtype="fp32", world_size=1)
    for regime in ("pipelined", "graph", "isolated"):
        with autotune.Context(1 << 20, url="sqlite:///there/is/none.db", regime=regime) as context:
            assert context.choose(problem).source == "default"
    assert asked == ["pipelined", "graph", "isolated"]


def test_a_regime_that_there_is_not_is_refused_before_anything_is_opened() -> None:
    with pytest.raises(InputError, match="regime 'eager': allowed: graph, pipelined, isolated"):
        autotune.Context(regime="eager")
