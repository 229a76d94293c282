"""A list of what a graph could call: alternatives for one place stay together, are written, read and counted once."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from test_candidates import gather, reduce
from test_decisions import Opened, groups  # noqa: F401
from test_patterns import graph_of
from torch.nn.functional import rms_norm

import autotune
from autotune.compiled.collecting import Collected
from autotune.compiled.decisions import Table
from autotune.compiled.fusing import Fusing
from autotune.errors import InputError
from autotune.fleet.problem_list import each_once, parse_list
from autotune.models.forward import Call, places
from autotune.problem import Problem

K, N = 64, 32


def normed(x: torch.Tensor, b: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = reduce(x @ b) + r
    return rms_norm(total, w.shape, w, 1e-6), total


def several(x: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
    whole = gather(x)
    return [whole @ each for each in (q, k, v)]


def read(text: str) -> list[Call]:
    return [Call("", each.problem, each.calls, each.place, each.way) for each in parse_list(text)]


def told(calls: list[Call]) -> list[list[dict[str, int]]]:
    """Workloads and their calls by place and way."""
    return [[{call.problem.workload: call.count for call in way} for way in place] for place in places(calls)]


@pytest.mark.parametrize(
    ("function", "shapes", "wanted"),
    [
        (
            normed, ((16, K), (K, N), (16, N), (N,)),
            [[{"gemm_all_reduce": 2}, {"gemm_all_reduce": 2}, {"gemm_all_reduce_norm": 2}, {"all_reduce_norm": 2}]],
        ),
        (several, ((8, K), (K, 2 * N), (K, N), (K, N)), [[{"all_gather_gemm": 4}, {"all_gather_gemm": 2}]]),
        (lambda x, b: gather(x) @ b, ((8, K), (K, N)), [[{"all_gather_gemm": 2}]]),
    ],
    ids=["norm", "several", "alone"],
)  # fmt: skip
def test_what_one_place_of_a_graph_could_be_are_alternatives(
    function: Callable[..., Any], shapes: tuple[tuple[int, ...], ...], wanted: Any, caplog: pytest.LogCaptureFixture
) -> None:
    graph = graph_of(function, *(torch.ones(shape) for shape in shapes), decomposed=False)
    made = Fusing(Table(Opened(), replicated=True))  # type: ignore[arg-type]
    with caplog.at_level(logging.INFO, "autotune"), autotune.collect() as problems:
        made(graph)
        made(graph)
    said = [record.getMessage() for record in caplog.records if record.name == "autotune"]
    assert said and said == list(made.lines), "what is found again is not told again"
    calls = read(problems.text())
    assert told(calls) == wanted
    if function is several:
        ((first, gathered),) = places(calls)
        assert [call.count for call in first] == [2, 4], "k and v are one problem"
        assert gathered[0].problem.gathered  # type: ignore[attr-defined]


def test_a_place_whose_first_way_is_in_the_graph_counts_its_calls_once() -> None:
    plain, normed = reduced(16), autotune.GemmAllReduceNorm(m=16, n=N, k=K, world_size=2)
    problems = Collected()
    problems.found([[plain], [normed]], replaced=True)
    problems.called(plain)
    assert told(read(problems.text())) == [[{"gemm_all_reduce": 1}, {"gemm_all_reduce_norm": 1}]]
    assert problems == Counter({plain: 1, normed: 1})


def reduced(m: int, k: int = K) -> Problem:
    return autotune.GemmAllReduce(m=m, n=N, k=k, world_size=2)


def place_of(m: int, k: int) -> list[list[Problem]]:
    return [[reduced(m, k)], [autotune.GemmAllReduceNorm(m=m, n=N, k=k, world_size=2)],
            [autotune.AllReduceNorm(m=m, n=N, world_size=2)]]  # fmt: skip


@settings(deadline=None)
@given(some.lists(some.tuples(some.integers(1, 9000), some.sampled_from((K, 2 * K))), min_size=1, max_size=60))
def test_places_are_written_and_read_with_all_their_calls(seen: list[tuple[int, int]]) -> None:
    """Whatever sizes are kept; a norm alone is an alternative in two places of one size."""
    problems = Collected()
    for m, k in seen:
        problems.found(place_of(m, k), replaced=False)
    text = problems.text()
    found = places(read(text))
    for place in found:
        counts = {call.count for way in place for call in way}
        assert len(place) == 3 and len(counts) == 1, "alternatives are called alike"
        assert len({call.problem.as_dict()["m"] for way in place for call in way}) == 1
    assert sum(place[0][0].count for place in found) == len(seen)
    if len({m for m, _ in seen}) <= 3:
        wanted = Counter((*(tuple(way) for way in place_of(m, k)),) for m, k in seen)
        assert Counter({tuple(tuple(c.problem for c in way) for way in p): p[0][0].count for p in found}) == wanted
    fleet = each_once(parse_list(text))
    assert len({each.problem for each in fleet}) == len(fleet), "a fleet tunes each once"


def test_a_way_is_of_a_place() -> None:
    entry = "{workload: gemm-all-reduce, m: 4, n: 64, k: 64, world_size: 2, way: 2%s}"
    with pytest.raises(InputError, match="place: NAME"):
        parse_list(f"problems: [{entry % ''}]")
    assert parse_list(f"problems: [{entry % ', place: mlp'}]")[0].place == "mlp"
