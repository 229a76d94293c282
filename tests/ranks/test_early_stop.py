"""The early stop: the error rate it promises, what it saves, and that it counts exactly."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from every_mode import whole

from autotune.ranks.early_stop import ERROR_RATE, LEAST_INTERESTING, clearly_slower, in_parts
from autotune.tuning import EFFORTS

DRAWS = 1000
SPREADS = [0.001, 0.003, 0.01, 0.03]
"""Half the distance between the 20th and the 80th percentile: what recordings have between 0.1 % and 3 %."""

ENDS = [whole(spread) if spread in SPREADS[1:-1] else spread for spread in SPREADS]
"""Between the ends nothing differs in kind."""

Noise = Callable[[np.random.Generator, tuple[int, int], float], np.ndarray]


def even(rng: np.random.Generator, shape: tuple[int, int], spread: float) -> np.ndarray:
    return np.exp(rng.normal(0, spread / 0.84, shape))  # 0.84: the 80th percentile of the normal distribution


def with_outliers(rng: np.random.Generator, shape: tuple[int, int], spread: float) -> np.ndarray:
    """Every tenth iteration takes up to half as long again."""
    late = rng.random(shape) < 0.1
    return even(rng, shape, spread) * np.where(late, 1 + 0.5 * rng.random(shape), 1.0)


def drifting(rng: np.random.Generator, shape: tuple[int, int], spread: float) -> np.ndarray:
    """The clocks differ by 1 % from one evaluation to the next."""
    return even(rng, shape, spread) * rng.uniform(0.995, 1.005, (shape[0], 1))


def drop_rate(effort: str, slower: float, spread: float, other: float, noise: Noise, draws: int = DRAWS) -> float:
    """The share of configs ``slower`` times slower than the incumbent that are dropped, at any look."""
    plan, rng = EFFORTS[effort], np.random.default_rng(1)
    times = slower * 100 * noise(rng, (draws, plan.iterations), spread)
    incumbents = 100 * noise(rng, (draws, plan.iterations), other)
    parts = in_parts(plan.screen, plan.iterations)
    looks = list(itertools.accumulate(parts))[:-1]
    dropped = 0
    for row, incumbent in zip(times.tolist(), incumbents.tolist(), strict=True):
        dropped += any(clearly_slower(row[:n], incumbent, len(looks)) for n in looks)
    return dropped / draws


def at_most(rate: float, draws: int = DRAWS) -> float:
    """The value that a simulation of a true rate exceeds once in a thousand."""
    return rate + 3.1 * math.sqrt(rate * (1 - rate) / draws)


@pytest.mark.parametrize("spread", ENDS)
@pytest.mark.parametrize(
    ("effort", "noise"),
    [
        *((effort, even) for effort in EFFORTS),
        ("standard", with_outliers),
        *(whole(effort, with_outliers) for effort in EFFORTS if effort != "standard"),
    ],
)
def test_at_the_least_interesting_difference_the_error_rate_holds(effort: str, spread: float, noise: Noise) -> None:
    rate = drop_rate(effort, 1 + LEAST_INTERESTING, spread, spread, noise)
    assert rate <= at_most(ERROR_RATE)


@pytest.mark.parametrize("noise", [even, with_outliers, drifting])
@pytest.mark.parametrize("spread", ENDS)
@pytest.mark.parametrize("other", ENDS)
def test_a_faster_config_is_not_dropped_whatever_the_noise_of_either(spread: float, other: float, noise: Noise) -> None:
    assert drop_rate("standard", 0.99, spread, other, noise, 500) <= at_most(ERROR_RATE, 500)


@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize(("slower", "spread", "power"), [(1.05, 0.003, 0.95), (1.1, 0.01, 0.95), (1.5, 0.03, 0.99)])
def test_what_is_clearly_slower_is_nearly_always_dropped(
    effort: str, slower: float, spread: float, power: float
) -> None:
    assert drop_rate(effort, slower, spread, spread, even, 500) >= power


def test_the_count_of_orders_is_exact() -> None:
    """Against every order of three times among six: dropped exactly where at most one in a hundred is as slow."""
    orders = list(itertools.combinations(range(9), 3))

    def pairs(places: Sequence[int]) -> int:
        return sum(place > other for place in places for other in set(range(9)) - set(places))

    for places in orders:
        as_slow = sum(pairs(other) >= pairs(places) for other in orders) / len(orders)
        times = [100 * 1.1**place for place in places]
        incumbent = [100 * 1.1**place / (1 + LEAST_INTERESTING) for place in range(9) if place not in places]
        assert clearly_slower(times, incumbent, looks=1) == (as_slow <= ERROR_RATE)


@pytest.mark.parametrize(("times", "incumbent"), [([], [1.0] * 9), ([9.0] * 5, []), ([9.0], [1.0] * 9)])
def test_too_little_is_known_to_drop_anything(times: list[float], incumbent: list[float]) -> None:
    assert not clearly_slower(times, incumbent, looks=1)


def test_each_of_several_looks_has_a_part_of_the_error_rate() -> None:
    """All of three times above seven others: once in 120 orders."""
    times, incumbent = [200.0] * 3, [100.0] * 7
    assert clearly_slower(times, incumbent, looks=1) and not clearly_slower(times, incumbent, looks=2)


def test_ties_speak_for_the_config() -> None:
    assert not clearly_slower([100 * (1 + LEAST_INTERESTING)] * 9, [100.0] * 9, looks=1)


@pytest.mark.parametrize(
    ("screen", "iterations", "parts"),
    [(5, 15, [5, 5, 5]), (3, 9, [3, 3, 3]), (5, 25, [5, 5, 10, 5]), (9, 9, [9]), (9, 5, [5])],
)
def test_each_look_doubles_what_is_known(screen: int, iterations: int, parts: list[int]) -> None:
    assert in_parts(screen, iterations) == parts
