"""Problems that differ in one size: few to search, and of many the ones to verify."""

from __future__ import annotations

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as some

import autotune
from autotune.compiled.collecting import Collected
from autotune.fleet.problem_list import parse_list
from autotune.models.spans import kept, spans, to_search
from autotune.problem import Problem
from autotune.sizes import WIDEST, few


def reduced(m: int, n: int = 64) -> Problem:
    return autotune.GemmAllReduce(m=m, n=n, k=64, world_size=2)


def decoded(batch: int, kv_len: int) -> Problem:
    return autotune.FlashDecode(batch=batch, q_heads=8, kv_heads=1, head_dim=128, kv_len=kv_len, world_size=2)


def sizes_of(problems: object) -> list[int]:
    return sorted(each.m for each in problems)  # type: ignore[attr-defined]


def test_a_span_goes_along_the_size_that_varies_most() -> None:
    problems = [decoded(batch, kv_len) for batch in range(1, 9) for kv_len in (1024, 4096)]
    found = spans([*problems, reduced(4), reduced(8), reduced(8, n=32)])
    assert sorted(list(span) for span in found) == [[*range(1, 9)], [*range(1, 9)], [4, 8], [8]]
    assert {each.batch for each in to_search(problems)} == {1, 4, 8}  # type: ignore[attr-defined]


@settings(deadline=None)
@given(some.lists(some.integers(1, 1 << 16), min_size=1, max_size=300, unique=True))
def test_of_many_sizes_few_are_kept_and_the_others_lie_between_them(sizes: list[int]) -> None:
    stands_for = kept(map(reduced, sizes))
    chosen = sizes_of({*stands_for.values()})
    assert len(chosen) <= 3 * len(few(sizes)) and {*few(sizes)} <= {*chosen} <= {*sizes}
    assert few(chosen) == few(sizes), "whoever reads the list chooses the same"
    for small, large in itertools.pairwise(chosen):
        assert large <= WIDEST * small or not any(small < size < large for size in sizes)


def test_what_a_serving_run_called_becomes_a_short_list_with_all_its_calls() -> None:
    rng = random.Random(46)
    problems = Collected({reduced(m): rng.randrange(1, 9) for m in rng.sample(range(1, 8193), 300)})
    asked = parse_list(problems.text())
    searched = sizes_of(each.problem for each in asked if each.search)
    verified = sizes_of(each.problem for each in asked if not each.search)
    seen = sizes_of(problems)
    assert searched == few(seen) and len(searched) <= 9 and len(verified) <= 2 * len(searched)
    assert {*verified} <= {*seen} and sum(m % 2 for m in verified) > len(verified) / 2, "off the grid, and really seen"
    assert sum(each.calls for each in asked) == problems.total()


def test_sizes_of_mixtures_and_batches_stand_in_one_entry() -> None:
    mixed = [
        autotune.MoeDispatchGemm(tokens=tokens, hidden=64, experts=4, top_k=2, width=32, world_size=2)
        for tokens in (1, 2, 3, 8)
    ]
    problems = Collected(dict.fromkeys((*mixed, *(decoded(batch, 1024) for batch in (1, 4, 16))), 5))
    text = problems.text()
    assert {each.problem for each in parse_list(text)} == {*problems} and text.count("workload:") == 3
