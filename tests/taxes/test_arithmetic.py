"""The arithmetic of the taxes: differences telescope, intervals hold what they should, slopes and slack are right."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.taxes import ladder
from autotune.taxes.arithmetic import Estimate, differences, estimate, same_clock, slack, slopes

TIMES = st.floats(0.1, 1e6)


def height(rounds: dict[str, list[float]], step: ladder.Step) -> Estimate:
    return estimate(differences([(rounds[step.above], rounds[step.below])]))


@st.composite
def ladders(draw: st.DrawFn) -> dict[str, list[float]]:
    """Some rungs, in any order, with a time for each of the same rounds."""
    letters = draw(st.lists(st.sampled_from(list(ladder.RUNGS)), unique=True, min_size=2))
    rounds = draw(st.integers(1, 6))
    return {letter: draw(st.lists(TIMES, min_size=rounds, max_size=rounds)) for letter in letters}


@given(ladders())
@settings(deadline=None, max_examples=60)
def test_the_steps_lead_from_the_first_rung_to_the_last_and_nothing_is_lost(rounds: dict[str, list[float]]) -> None:
    apart = "W" in rounds
    steps = ladder.steps(rounds, winner_apart=apart)
    there = [letter for letter in ladder.RUNGS if letter in rounds]
    assert [step.above for step in steps] == there[:-1] and [step.below for step in steps] == there[1:]
    heights = math.fsum(height(rounds, step).value for step in steps)
    whole = statistics.fmean(rounds[there[0]]) - statistics.fmean(rounds[there[-1]])
    assert heights == pytest.approx(whole, abs=1e-6)
    causes = [cause for step in steps for cause in step.causes]
    assert len(causes) == len(set(causes))
    order = [letter for letter in ladder.RUNGS if letter != "W" or apart]
    between = order[order.index(there[0]) + 1 : order.index(there[-1]) + 1]
    every = [cause for letter in between for cause in ladder.CAUSES[letter]]
    assert causes == every, "each cause once, whatever is missing"
    dosed = ladder.steps(rounds, winner_apart=apart, dosed=True)
    assert [cause for step in dosed for cause in step.causes] == every
    assert sum(step.boundaries for step in dosed) == 0, "what the dose tells is taken from the rest"


@given(ladders())
@settings(deadline=None, max_examples=60)
def test_a_tax_is_the_sum_of_its_own_causes_or_not_told_apart(rounds: dict[str, list[float]]) -> None:
    steps = ladder.steps(rounds, winner_apart="W" in rounds)
    for tax, causes in ladder.TAXES.items():
        own = ladder.tax_of(tax, steps)
        if own is None:
            assert not set(causes) <= {step.name for step in steps}
            continue
        assert sorted(cause for step in own for cause in step.causes) == sorted(causes)
        terms = [(rounds[step.above], rounds[step.below]) for step in own]
        expected = sum(height(rounds, step).value for step in own)
        assert estimate(differences(terms)).value == pytest.approx(expected, abs=1e-6)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=40))
@settings(deadline=None, max_examples=40)
def test_an_interval_holds_its_mean_and_lies_within_the_rounds(rounds: list[float]) -> None:
    found = estimate(rounds)
    assert min(rounds) - 1e-9 <= found.low <= found.value <= found.high <= max(rounds) + 1e-9
    negated = estimate([-each for each in rounds])
    assert (negated.low, negated.high) == pytest.approx((-found.high, -found.low), abs=1e-9)
    assert negated.is_nil == found.is_nil and found.error >= 0


def test_an_interval_says_what_is_nil() -> None:
    assert estimate([1.0, -1.2, 0.9, -0.8, 0.1]).is_nil
    assert not estimate([1.0, 1.2, 0.9, 0.8]).is_nil and not estimate([-1.0, -1.2, -0.9]).is_nil
    with pytest.raises(ValueError, match="no rounds"):
        estimate([])
    with pytest.raises(ValueError, match="1 dose"):
        slopes({0.0: [1.0]})


def test_an_interval_covers_the_truth_as_often_as_it_says() -> None:
    """Of 200 samples of 30 rounds; a percentile bootstrap covers a little less than 95 %."""
    import numpy as np

    drawn = np.random.default_rng(0).exponential(1.0, size=(200, 30))
    covered = sum(found.low <= 1.0 <= found.high for found in (estimate(list(each)) for each in drawn))
    assert 170 <= covered <= 198
    assert estimate([0.0, 1.0] * 20).error == pytest.approx(1.96 * 0.5 / math.sqrt(40), rel=0.08), "95 %, not 90"


def test_what_is_common_to_a_round_cancels() -> None:
    drift = [0.0, 50.0, 120.0, 15.0, 80.0]
    above, below = [100 + each for each in drift], [97 + each for each in drift]
    found = estimate(differences([(above, below)]))
    assert found.low == pytest.approx(3.0) and found.high == pytest.approx(3.0)
    with pytest.raises(ValueError, match="shorter"):
        differences([(above, below[:-1])])


def test_terms_of_other_rounds_are_resampled_apart() -> None:
    """Their errors add as those of independent numbers do; within a round they would cancel or add up."""
    one, other = [0.0, 1.0] * 20, [1.0, 0.0] * 10
    found = estimate(one, other)
    assert found.value == pytest.approx(1.0)
    assert found.error == pytest.approx(math.hypot(estimate(one).error, estimate(other).error), rel=0.1)


@given(st.floats(0, 5), st.floats(1, 1e3), st.lists(st.floats(-1, 1), min_size=2, max_size=5))
@settings(deadline=None, max_examples=40)
def test_a_slope_is_that_of_the_line(cost: float, base: float, drift: list[float]) -> None:
    doses = {dose: [base + cost * dose + each for each in drift] for dose in (0.0, 2.0, 4.0, 8.0)}
    assert slopes(doses) == pytest.approx([cost] * len(drift), abs=1e-6), "a drift of whole rounds is no error"


@pytest.mark.parametrize(
    ("times", "absorbed"),
    [
        ({0: [100.0], 10: [110.0], 20: [120.0]}, 5.0),
        ({0: [100.0], 10: [100.0], 20: [104.0], 50: [134.0]}, 21.0),
        ({0: [100.0], 10: [100.0], 20: [101.0]}, math.inf),
        ({0: [100.0], 10: [105.0], 20: [105.1]}, 10.0),
    ],
)
def test_the_slack_is_the_delay_that_a_call_does_not_feel(times: dict[float, list[float]], absorbed: float) -> None:
    assert slack(times) == pytest.approx(absorbed)


def test_rounds_of_different_clocks_are_told() -> None:
    clocks = {"E1": [1980.0, 1980.0, 1700.0], "B": [1960.0, 1900.0, 1690.0]}
    assert same_clock(clocks, 3) == [True, False, True]
    assert same_clock({}, 2) == [True, True] and same_clock({"B": [0.0, 1980.0]}, 2) == [True, True]
    assert same_clock({"B": [0.0, 1980.0], "G": [1980.0]}, 2) == [True, True], "what is not known differs from nothing"
