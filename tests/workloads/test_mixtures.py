"""A mixture's check, on ranks without a heap: a right result passes, each fault is seen."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune.kernels.gemm.library import dequantised
from autotune.kernels.moe.routing import planned
from autotune.machine import H100, INTERPRETED
from autotune.task import Task
from autotune.workloads import workload
from autotune.workloads.combined import DrawnRows
from autotune.workloads.experts import KINDS, PLAIN

RANKS, TOKENS, TOP_K, LOCAL = 3, 5, 3, 2
SIZES: dict[str, Any] = {
    "tokens": TOKENS, "hidden": 128, "experts": RANKS * LOCAL, "top_k": TOP_K, "world_size": RANKS,
}  # fmt: skip
FP8: dict[str, Any] = {"dtype": "fp8", "scales": "block"}
DISPATCHES = [("moe_dispatch", {}), ("moe_dispatch", FP8), ("moe_dispatch_gemm", {"width": 64, "epilogue": "none"})]


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def operations(name: str, seed: int = 3, **fields: Any) -> list[Any]:
    found = workload(name)
    problem = found.problem_type(**SIZES | fields)
    heaps: list[Any] = [
        SimpleNamespace(device=torch.device("cpu"), rank=rank, world_size=RANKS, allocate=empty, mark=lambda: 0)
        for rank in range(RANKS)
    ]
    made = [found.operation(Task(problem, INTERPRETED), heap, 1) for heap in heaps]
    for operation in made:
        operation.refresh(seed)
    return made


def put(ranks: list[Any], number: int) -> None:
    for operation in ranks:
        operation.put(number)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor


def dispatched(ranks: list[Any], rank: int) -> list[torch.Tensor]:
    """What a right dispatch gives a rank, of what lies in every rank's operands; rows that do not exist are poison."""
    tensors = [operation._tensors for operation in ranks]
    problem = ranks[rank]._problem
    every = torch.cat([as_bytes(each.x) for each in tensors]).view(tensors[0].x.dtype)
    routing: Any = SimpleNamespace(
        ids=torch.stack([each.ids for each in tensors]), gates=torch.stack([each.gates for each in tensors])
    )
    plan = planned(problem, routing, rank)
    end, token = int(plan.offsets[-1]), plan.pairs // TOP_K
    rows = as_bytes(every)[token].view(every.dtype)
    more = []
    if problem.workload == "moe_dispatch_gemm":
        product = torch.zeros((problem.capacity, problem.columns))
        for expert, (first, last) in enumerate(itertools.pairwise(plan.offsets.tolist())):
            product[first:last] = rows[first:last].float() @ tensors[rank].b[expert].float()
        rows = product.bfloat16()
    elif problem.scaled:
        more = [torch.cat([each.scale_x for each in tensors])[token]]
    found = [rows.clone(), plan.offsets, plan.pairs.clone(), plan.gates.clone(), *more]
    as_bytes(found[0])[end:] = 111
    for each, of in ((found[2], -7), (found[3], math.nan)):
        each[end:] = of
    return found


@pytest.mark.parametrize(("name", "fields"), DISPATCHES)
def test_a_dispatch_is_wrong_with_another_plan_a_row_of_another_token_or_other_scales(
    name: str, fields: dict[str, Any]
) -> None:
    ranks = operations(name, **fields)
    checked = 0
    for number in range(len(KINDS)):
        put(ranks, number)
        for rank, operation in enumerate(ranks):
            right = dispatched(ranks, rank)
            tolerance = workload(name).tolerance_of(
                Task(operation._problem, INTERPRETED),
                workload(name).default_config(Task(operation._problem, INTERPRETED)),
            )

            def passes(outputs: list[torch.Tensor], number: int = number, operation: Any = operation) -> bool:
                error, allowed = operation.error_of(outputs, number), tolerance  # noqa: B023
                return bool(error.overall <= allowed.overall and error.element <= allowed.element)

            assert passes(right), (number, rank)
            for tensor, out in zip(right, operation.outputs(), strict=True):
                as_bytes(out).copy_(as_bytes(tensor))
            assert operation.error() == operation.error_of(right, number), "of the set that is in place"
            for other in range(len(KINDS)):
                assert other == number or not passes(right, other), "another call's result"
            end = int(right[1][-1])
            for place in range(len(right)):
                if end or place == 1:
                    wrong = [each.clone() for each in right]
                    row = LOCAL if place == 1 else end - 1
                    as_bytes(wrong[place])[row] = as_bytes(right[place])[row - 1] + 1
                    assert not passes(wrong), (number, rank, place)
                    checked += 1
    assert checked > 3 * len(right)


@pytest.mark.parametrize("fields", [{}, {"dtype": "fp32"}])
def test_a_combine_is_wrong_with_a_row_of_another_place_without_a_gate_or_where_no_expert_was(
    fields: dict[str, Any],
) -> None:
    ranks = operations("moe_combine", **fields)
    found = workload("moe_combine")
    problem = ranks[0]._problem
    allowed = found.tolerance_of(Task(problem, H100), found.default_config(Task(problem, H100)))
    seen = set()
    for number, kind in enumerate(KINDS):
        put(ranks, number)
        for rank, operation in enumerate(ranks):

            def result(gated: bool = True, places: int = 0, rank: int = rank) -> torch.Tensor:
                """The sums, in fp64, of the rows in every rank's operands; of a token's places but for ``places``."""
                total = torch.zeros((TOKENS, problem.hidden), dtype=torch.float64)
                for each in (operation._tensors for operation in ranks):
                    end = int(each.offsets[-1])
                    assert not each.rows[:end].isnan().any() and bool(each.rows[end:].isnan().all())
                    assert bool((each.pairs[end:] < 0).all() and each.row_gates[end:].isnan().all())
                    for row in range(end):
                        source, token = divmod(int(each.pairs[row]) // TOP_K, TOKENS)
                        if source == rank and int(each.pairs[row]) % TOP_K >= places:
                            total[token] += each.rows[row].double() * (float(each.row_gates[row]) if gated else 1.0)
                return total.to(operation.outputs()[0].dtype)

            def passes(out: torch.Tensor, number: int = number, operation: Any = operation) -> bool:
                error = operation.error_of([out], number)
                return bool(error.overall <= allowed.overall and error.element <= allowed.element)

            right = result()
            assert passes(right), (kind, rank)
            there = (operation._tensors.ids >= 0).any(1)
            if bool(there.any()):
                assert not passes(result(gated=False)) and not passes(result(places=1)) and not passes(right * 1.02)
                assert not passes(right.roll(1, 0)) and not passes(-right), "another token's, another call's"
            if not bool(there.all()):
                beyond = right.clone()
                beyond[~there] = 1e-6
                assert not passes(beyond), "a token without experts has a result"
                seen.add(bool(there.any()))
    assert seen == {True, False}, "a rank without tokens, and one with some"


def test_rows_of_a_token_differ_by_their_place() -> None:
    """Those of two of its experts, exchanged, are wrong where their gates differ."""
    ranks = operations("moe_combine")
    rows = {}
    for each in (operation._tensors for operation in ranks):
        rows |= {int(pair): row for pair, row in zip(each.pairs, each.rows, strict=True) if pair >= 0}
    assert len(rows) == RANKS * TOKENS * TOP_K
    for token in range(RANKS * TOKENS):
        first, second, third = (rows[token * TOP_K + place] for place in range(TOP_K))
        assert torch.equal(second, 2 * first) and torch.equal(third, first)


def test_trials_are_timed_on_routings_that_compare() -> None:
    """Of few tokens the most experts that a rank reads differ by the draw, not by the trial."""
    most = set()
    for seed in range(8):
        operation = operations("moe_dispatch", seed, tokens=1, experts=96, top_k=8)[0]
        ids = operation.drawn.routings[PLAIN].ids.unique()
        most.add(int(torch.bincount(ids // 32).max()))
    assert len(most) == 1


@pytest.mark.parametrize("largest", [False, True])
def test_fp8_rows_and_their_scales_are_the_numbers_that_results_are_compared_with(largest: bool) -> None:

    def full(shape: tuple[int, int], dtype: torch.dtype, *_: object) -> torch.Tensor:
        return torch.full(shape, 224.0).to(dtype)

    ranks = operations("moe_gemm_combine", width=256, **FP8)
    for number, operation in itertools.product(range(len(KINDS)), ranks):
        if largest:
            operation.drawn = DrawnRows(operation._problem, operation._heap, 3, 256, full)
        operation.put(number)
        each, end = operation._tensors, int(operation._tensors.offsets[-1])
        token, place = each.pairs[:end] // TOP_K, each.pairs[:end] % TOP_K
        wanted = operation.drawn.numbers(number, slice(None))[token] * (1.0 + place % 2)[:, None]
        found = dequantised(as_bytes(each.a)[:end].view(each.a.dtype), each.scale_a[:end])
        assert torch.equal(found, wanted) and bool(each.scale_a[end:].isnan().all())


def test_sets_of_inputs_are_drawn_afresh_and_one_after_the_other_is_in_place() -> None:
    (operation, *_) = operations("moe_combine")
    before = operation.drawn.routings[PLAIN].ids
    sets = operation.input_sets(9)
    assert not torch.equal(operation.drawn.routings[PLAIN].ids, before)
    for number in range(sets.count):
        sets.put(number)
        assert torch.equal(operation._tensors.ids, operation.drawn.ids(number)) and operation._number == number


def test_the_part_that_is_timed_alone_sends_what_goes_to_ranks_on_average(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    monkeypatch.setattr(torch.distributed, "all_to_all_single", lambda out, given: sent.append((out, given)))
    (operation, *_) = operations("moe_dispatch")
    operation.parts()["all_to_all"]()
    ((out, given),) = sent
    problem = operation._problem
    rows = round(TOKENS * problem.reached)
    assert 0 < rows < TOKENS and out.shape == given.shape == (RANKS * rows, 128 * 2)
