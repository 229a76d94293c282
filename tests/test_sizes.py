"""Sizes of a range: those searched, and those verified between them."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as some

from autotune.sizes import WIDEST, few, off_grid, parse_sizes, spread

SIZES = some.lists(some.integers(1, 1 << 20), min_size=1, max_size=300)


@settings(deadline=None)
@given(SIZES)
def test_few_of_many_sizes_span_them_and_leave_no_gap_that_others_could_close(sizes: list[int]) -> None:
    found = few(sizes)
    assert found == sorted(set(found)) and {*found} <= {*sizes}
    assert (found[0], found[-1]) == (min(sizes), max(sizes))
    for small, large in itertools.pairwise(found):
        between = [size for size in sizes if small < size < large]
        assert large <= WIDEST * small or not any(size <= WIDEST * small for size in between)
    assert len(found) <= 2 + 20, "at most two for each factor of four"


def test_of_a_doubling_range_every_other_size_is_searched() -> None:
    assert few(parse_sizes("1..8192", "m")) == [1, 4, 16, 64, 256, 1024, 4096, 8192]


@settings(deadline=None)
@given(SIZES, some.integers(1, 8))
def test_sizes_off_the_grid_are_odd_for_each_rank_and_lie_between(sizes: list[int], ranks: int) -> None:
    shared = off_grid(sizes, ranks, lambda size: size % ranks == 0)
    assert all(size % ranks == 0 and size // ranks % 2 for size in shared)
    for found in (shared, off_grid(sizes, ranks, lambda size: True)):
        assert not {*found} & {*sizes} and all(min(sizes) < size < max(sizes) for size in found)
    assert all(size % 2 for size in off_grid(sizes, ranks, lambda size: True))


def test_along_each_dimension_sizes_are_verified_where_the_others_are_searched() -> None:
    lists = {"batch": [1, 2, 4, 8], "kv_len": [64, 128, 256], "heads": [2]}
    searched, verified = spread(lists, ["batch", "kv_len"], ["batch", "kv_len"], 2, lambda sizes: True)
    assert [(each["batch"], each["kv_len"]) for each in searched] == [
        (batch, length) for batch in (1, 4, 8) for length in (64, 256)
    ]
    at = {(each["batch"], each["kv_len"]) for each in verified}
    assert {(2, 64), (2, 256), (1, 128), (8, 128)} <= at
    assert all(batch in (1, 4, 8) or length in (64, 256) for batch, length in at), "on the lines of the grid"
    assert not at & {(each["batch"], each["kv_len"]) for each in searched}
