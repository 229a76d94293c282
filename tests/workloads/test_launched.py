"""An operation with kernels on a rank: the heap it takes and gives back, what it begins with, and its baselines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune.config import Config
from autotune.machine import H100, INTERPRETED
from autotune.task import Task
from autotune.workloads import names, workload

SIZES: dict[str, Any] = {"tokens": 3, "hidden": 64, "experts": 2, "top_k": 2, "world_size": 1}
COMBINE = workload("moe_combine")


def heap(events: list[object]) -> Any:
    """One that is none, and notes what is asked of it."""

    def noted(word: str) -> Any:
        return lambda *given: events.append((word, *given))

    return SimpleNamespace(
        device=torch.device("cpu"), rank=0, world_size=1, group=None, bases=None, library_group=None,
        mark=lambda: 4096, owns=lambda _: False, barrier=noted("barrier"), release=noted("release"),
        allocate=lambda shape, dtype: torch.zeros(shape, dtype=dtype),
    )  # fmt: skip


def operation(events: list[object], dtype: str = "bf16") -> Any:
    return COMBINE.operation(Task(COMBINE.problem_type(**SIZES, dtype=dtype), INTERPRETED), heap(events), 1)


def test_the_last_configs_memory_is_given_back_once_all_ranks_have_ended_it() -> None:
    events: list[object] = []
    made = operation(events)
    for _ in range(2):
        events.clear()
        made.prepare(Config({"mode": "bsp", "exchange": "reduce_scatter", "launch": "eager"}))
        assert events[:2] == [("barrier",), ("release", 4096)]


def test_integers_select_nothing_beyond_a_tensor_before_there_are_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "empty", lambda shape, dtype, device: torch.full(shape, 77, dtype=dtype, device=device))
    tensors = operation([])._tensors
    assert not any(bool(each.any()) for each in (tensors.offsets, tensors.pairs, tensors.ids))


def test_the_librarys_ways_are_called_one_by_one_and_in_a_graph_where_the_host_reads_nothing() -> None:
    problem = COMBINE.problem_type(**{**SIZES, "world_size": 2})
    found = COMBINE.baselines(Task(problem, H100))
    assert {name: (way["exchange"], way["launch"]) for name, way in found.items()} == {
        "bsp eager": ("reduce_scatter", "eager"), "bsp graph": ("reduce_scatter", "graph"),
        "bsp counted eager": ("all_to_all", "eager"),
    }  # fmt: skip
    assert set(COMBINE.baselines(Task(problem, INTERPRETED))) == {"bsp eager", "bsp counted eager"}


def test_a_reference_is_wider_than_its_result() -> None:
    assert [operation([], dtype).wide for dtype in ("bf16", "fp32")] == [torch.float32, torch.float64]


@pytest.mark.parametrize("name", names())
def test_what_is_timed_is_random(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU multiplies zeros, or numbers that are all alike, faster than a model's: it draws less power."""
    monkeypatch.setattr(torch.distributed, "all_gather", lambda parts, part, group: parts[0].copy_(part))
    found = workload(name)
    problem = found.default_problem(INTERPRETED, 1)
    made = found.operation(Task(problem, INTERPRETED), heap([]), 1)
    draws = []
    for seed in (1, 2):
        made.refresh(seed)
        draws.append([each.double() for each in made.inputs() if each.is_floating_point()])
    assert draws[0]
    for first, second in zip(*draws, strict=True):
        assert float((first == 0).double().mean()) < 0.25
        assert len(first.unique()) >= min(100, first.numel() // 2)
        assert float((first != second).double().mean()) > 0.5
