"""A context by itself, on one rank: whose winners its operators get."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fakes import latency_of

import autotune
from autotune.db import CacheKey, Store, Winner
from autotune.errors import HeapError, InputError
from autotune.machine import INTERPRETED
from autotune.runtime import context as module
from autotune.runtime.lookup import forget_lookups
from autotune.workloads import provenance_of, workload


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
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


def test_a_new_winner_reaches_a_context_only_when_it_is_asked_for(alone: None, tmp_path: Path) -> None:
    """After ``forget_lookups``, and where everything is set up anew: no call and no graph changes in between."""
    url, problem = (
        f"sqlite:///{tmp_path}/cache.db",
        autotune.GemmAllReduce(m=16, n=32, k=32, dtype="fp32", world_size=1),
    )
    found = workload("gemm_all_reduce")
    default = found.default_config(problem, INTERPRETED)
    other = next(each for each in found.first_configs(problem, INTERPRETED) if each != default)
    forget_lookups()
    with autotune.Context(1 << 20, url=url) as context:
        assert context.choose(problem).source == "default"
        with Store.open(url) as store:
            study = store.study(CacheKey.of(problem, INTERPRETED), provenance_of(found), seed=0, space_size=1)
            store.finish(study.id, Winner(other, latency_of(100.0)))
        context.release()
        assert context.choose(problem).source == "default", "the program has not asked for new winners"
        forget_lookups()
        assert context.choose(problem).config == default, "calls and graphs that were set up keep their config"
        context.release()
        assert (context.choose(problem).source, context.choose(problem).config) == ("exact", other)
    forget_lookups()


def test_without_gpu_and_interpreter_it_says_what_to_set(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(HeapError, match="no GPU here; on CPUs, run the program with TRITON_INTERPRET=1"):
        autotune.Context(1 << 20)


def test_a_regime_that_there_is_not_is_refused_before_anything_is_opened() -> None:
    with pytest.raises(InputError, match="regime 'eager': allowed: graph, pipelined, isolated"):
        autotune.Context(regime="eager")
