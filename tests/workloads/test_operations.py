"""Operations on a rank: memory that they take and give back, inputs in sets; what is of another set is wrong."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune.config import Config
from autotune.machine import H100, INTERPRETED
from autotune.task import Task
from autotune.workloads import experts, gemm, names, workload
from autotune.workloads.input_sets import SETS, Refreshed, poison
from autotune.workloads.tolerance import Error

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


@pytest.mark.parametrize("module", [gemm, experts])
def test_a_matrix_of_one_set_with_scales_of_another_is_right_in_none(module: Any) -> None:
    pairs = list(enumerate(itertools.product(module.FACTORS, module.SCALE_FACTORS)))
    count = len(module.FACTORS)
    right = {a * scale for at, (a, scale) in pairs if at // count == at % count}
    mixed = {a * scale for at, (a, scale) in pairs if at // count != at % count}
    assert len(right) == count == len(module.SCALE_FACTORS) and not right & mixed
    assert len(set(module.FACTORS)) == count == len(set(module.SCALE_FACTORS))


class Doubling:
    """An operation whose result is twice its input; ``refresh`` draws both."""

    def __init__(self) -> None:
        self.x, self.out, self.seeds = torch.zeros(4), torch.zeros(4), list[int]()

    def refresh(self, seed: int) -> None:
        self.seeds.append(seed)
        self.x.copy_(torch.rand(4, generator=torch.Generator().manual_seed(seed)))
        poison(self.out)

    def inputs(self) -> Sequence[torch.Tensor]:
        return [self.x]

    def outputs(self) -> Sequence[torch.Tensor]:
        return [self.out]

    def error(self) -> Error:
        off = float((self.out - 2 * self.x).abs().max())
        return Error(off, off)


def test_sets_that_an_operation_draws_one_by_one_are_put_back_and_judged_each_by_its_own() -> None:
    operation = Doubling()
    sets = Refreshed(operation, 5)
    results = []
    for number in range(SETS):
        sets.put(number)
        results.append((2 * operation.x).clone())
    assert len(set(operation.seeds)) == sets.count == SETS == 3
    errors = [[sets.error_of([result], number).overall for result in results] for number in range(SETS)]
    assert all((errors[i][j] == 0) == (i == j) for i, j in itertools.product(range(SETS), repeat=2))
    following = Refreshed(Doubling(), 6)
    assert not set(following._seeds) & set(sets._seeds), "an evaluation's own seeds follow each other"


def test_poison_is_what_no_result_is() -> None:
    tensors = [torch.ones(3, dtype=dtype) for dtype in (torch.float32, torch.bfloat16, torch.complex64, torch.int32)]
    for tensor in tensors:
        poison(tensor)
    assert all(bool(tensor.isnan().all()) for tensor in tensors[:3])
    assert tensors[3].tolist() == [-(2**31)] * 3
    flags = torch.ones(2, dtype=torch.bool)
    poison(flags)
    assert flags.tolist() == [True, True]
