"""Sets of inputs for calls back to back: what is of another call is wrong data, whichever call it is of."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune.kernels.moe.problem import ExpertsProblem
from autotune.kernels.moe_dispatch_gemm.problem import MoeDispatchGemm
from autotune.workloads import experts, gemm
from autotune.workloads.comparison import drawn
from autotune.workloads.input_sets import SETS, Refreshed, poison
from autotune.workloads.tolerance import Error


@pytest.mark.parametrize("module", [gemm, experts])
def test_a_matrix_of_one_set_with_scales_of_another_is_right_in_none(module: Any) -> None:
    pairs = list(enumerate(itertools.product(module.FACTORS, module.SCALE_FACTORS)))
    count = len(module.FACTORS)
    right = {a * scale for at, (a, scale) in pairs if at // count == at % count}
    mixed = {a * scale for at, (a, scale) in pairs if at // count != at % count}
    assert len(right) == count == len(module.SCALE_FACTORS) and not right & mixed
    assert len(set(module.FACTORS)) == count == len(set(module.SCALE_FACTORS))


@pytest.mark.parametrize("scales", ["none", "row"])
def test_tokens_of_every_set_differ_and_are_those_of_their_rank(scales: str) -> None:
    sizes: dict[str, Any] = {"tokens": 5, "hidden": 64, "experts": 6, "top_k": 2, "world_size": 3, "width": 64}
    problem: ExpertsProblem = MoeDispatchGemm(**sizes, dtype="bf16" if scales == "none" else "fp8", scales=scales)
    heaps: list[Any] = [SimpleNamespace(device=torch.device("cpu"), world_size=3, rank=rank) for rank in range(3)]
    draws = [experts.DrawnVectors(problem, heap, 7, 64, drawn) for heap in heaps]
    everything = [draws[0].numbers(number, slice(None)).float() for number in range(len(experts.KINDS))]
    for one, other in itertools.combinations(everything, 2):
        assert float((one != other).float().mean()) > 0.9
    of_sets = [draws[0].sent(number, slice(None))[1] for number in range(len(experts.KINDS))]
    for one_of, other_of in itertools.combinations(of_sets, 2):
        assert one_of is other_of is None if scales == "none" else bool((one_of != other_of).all())
    for number, draw in itertools.product(range(3), draws):
        assert torch.equal(draw.numbers(number, slice(None)).float(), everything[number]), "alike on every rank"
        assert torch.equal(draw.routings[number].ids, draws[0].routings[number].ids)
    assert draws[1]._mine == slice(5, 10)
    anew = experts.DrawnVectors(problem, heaps[0], 8, 64, drawn)
    assert not torch.equal(anew.numbers(0, slice(None)).float(), everything[0]), "another seed draws anew"


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
