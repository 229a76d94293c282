"""Borders between measured sizes."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from itertools import pairwise
from operator import itemgetter

from hypothesis import given, settings
from hypothesis import strategies as some

from autotune.config import Config
from autotune.db import CacheKey, Entry, Provenance, Winner
from autotune.db.ranges import UNMEASURED, Place, border, by_expected_loss
from autotune.outcome import Latency, Regime
from autotune.sizes import WIDEST

SIZES = some.integers(1, 1 << 40)
LOST = some.one_of(some.none(), some.floats(1.0, 3.0))
KEY, SOURCES = CacheKey("any", "{}", 2, "NVIDIA H200", "sm_90", "nvlink"), Provenance("a", "b", "3.7", "0", "2.13", "")
TIME = Latency(100.0, 100.0, 100.0, 0.0, 1)


def place(size: int, mode: str, other: str, lost: float | None) -> Place:
    """A size at which ``mode`` won in 100 µs, and the ``other`` took ``lost`` times as long, if it was measured."""
    beside = {} if lost is None else {Config({"mode": other}).to_json(): 100.0 * lost}
    winner = Winner(Config({"mode": mode}), TIME, beside=beside)
    return Place(size, winner, Regime.GRAPH)


@settings(deadline=None)
@given(SIZES, some.floats(1.0, 8.0), LOST, LOST)
def test_a_border_lies_between_the_two_nearer_to_the_one_whose_config_loses_more_at_the_other(
    small: int, factor: float, at_small: float | None, at_large: float | None
) -> None:
    large = max(small + 1, int(small * factor))
    found = border(place(small, "a", "b", at_small), place(large, "b", "a", at_large))
    if large > WIDEST * small:
        assert found is None
        return
    assert found is not None and small <= found < large
    middle = border(place(small, "a", "b", None), place(large, "b", "a", None))
    assert middle is not None and middle**2 <= small * large < (middle + 1) ** 2
    at_small, at_large = (math.exp(UNMEASURED) if lost is None else lost for lost in (at_small, at_large))
    if at_small > at_large * 1.001:
        assert found >= middle, "a is much faster at its size, b hardly at its own"
    if at_small < at_large / 1.001:
        assert found <= middle


def test_a_config_that_loses_nothing_at_the_other_size_serves_all_between() -> None:
    assert border(place(100, "a", "b", 1.2), place(200, "b", "a", 1.0)) == 199
    assert border(place(100, "a", "b", 1.0), place(200, "b", "a", 1.2)) == 100


def test_beside_a_size_that_was_searched_first_the_larger_ones_finals_decide() -> None:
    """They had both configs: a tie there leaves all between to the smaller one's, which was measured at both ends."""
    borders = [border(place(100, "a", "b", None), place(170, "b", "a", lost)) for lost in (1.0, 1.02, 1.1, 1.5, 3.0)]
    assert borders == sorted(borders, key=lambda each: -(each or 0)) and len(set(borders)) == len(borders)
    assert borders[0] == 169 and borders[2] == 130, "the geometric mean"


@given(
    some.lists(
        some.tuples(some.floats(0.1, 8.0), some.lists(some.floats(1.0, 3.0), min_size=5, max_size=5)),
        min_size=5,
        max_size=5,
    )
)
def test_of_the_nearest_winners_that_one_is_first_which_loses_least_in_the_weighted_mean(
    drawn: list[tuple[float, list[float]]],
) -> None:
    """Every config was measured at every problem; ``drawn``: a problem's distance, and what each loses there."""
    names = "abcde"
    problems = sorted(drawn, key=itemgetter(0))
    near = []
    for own, (distance, losses) in zip(names, problems, strict=True):
        beside = {Config({"mode": other}).to_json(): 100.0 * lost for other, lost in zip(names, losses, strict=True)}
        del beside[Config({"mode": own}).to_json()]
        winner = Winner(Config({"mode": own}), TIME, beside=beside)
        near.append((distance, Entry(KEY, SOURCES, winner, 1, datetime(2026, 1, 1, tzinfo=UTC), 1, 0, 1)))
    found = [str(each.winner.config["mode"]) for each in by_expected_loss(near)]

    def loss(name: str) -> float:
        at = names.index(name)
        lost = [(d, 0.0 if own == name else math.log(each[at])) for own, (d, each) in zip(names, problems, strict=True)]
        return sum(each / d**2 for d, each in lost)

    assert sorted(found) == list(names)
    assert all(loss(one) <= loss(other) + 1e-9 for one, other in pairwise(found))
