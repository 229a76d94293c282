"""Figures: what a ± says, with rounds and without."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest
from fakes import latency_of

from autotune.outcome import HostOverhead, Latency, Regime, alike
from autotune.results.figures import NOT_TOLD_APART, Ratio, latency_text, overlap_efficiency, ratio
from autotune.tuning.finals import merge


def in_rounds(*medians: float, **fields: float) -> Latency:
    return merge([Latency(median, 0.999 * median, 1.001 * median, 0.1, 15, (), **fields) for median in medians])


BASELINE, WINNER = in_rounds(100.0, 104.0, 96.0, 103.0), in_rounds(90.0, 97.0, 89.0, 95.0)


def test_a_speedup_comes_from_the_ratios_of_the_same_rounds() -> None:
    found = ratio(BASELINE, WINNER)
    by_round = [one / other for one, other in zip(BASELINE.rounds, WINNER.rounds, strict=True)]
    assert found.value == pytest.approx(math.prod(by_round) ** 0.25) and found.rounds == 4
    assert all(abs(each - found.value) < found.error for each in by_round), "iterations within a round differ by 0.1 %"
    assert str(found) == "1.09 ± 0.03"
    longer = in_rounds(100.0, 104.0, 96.0, 103.0, 500.0, 500.0)
    assert ratio(longer, WINNER) == found, "rounds that one of them was not in do not count"


def test_the_latency_has_the_uncertainty_of_its_rounds() -> None:
    assert latency_text(WINNER) == "92.50 µs ± 6.6 %"
    assert latency_text(in_rounds(100.0, 150.0)) == "125.0 µs ± over 100 %"
    assert latency_text(latency_of(92.5)) == "92.50 µs ± 1.0 %", "of what was measured once, its iterations'"


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    rng, draws = random.Random(4), 1000

    def rounds(median: float, count: int) -> Latency:
        return in_rounds(*(median * math.exp(rng.gauss(0, 0.01)) for _ in range(count)))

    for count in (2, 4, 8):
        found = [ratio(rounds(125.0, count), rounds(100.0, count)) for _ in range(draws)]
        share = sum(abs(each.value - 1.25) <= each.error for each in found) / draws
        assert share == pytest.approx(0.95, abs=3.5 * math.sqrt(0.95 * 0.05 / draws))


def test_without_rounds_it_says_so_instead_of_pretending() -> None:
    for one, other in ((latency_of(150.0), latency_of(100.0)), (BASELINE, latency_of(100.0)), (in_rounds(9.0), WINNER)):
        found = ratio(one, other)
        assert found.rounds == 0 and str(found).endswith(" (by spread)")
    one, other = latency_of(100.0, host=300.0), latency_of(50.0, host=120.0)
    assert ratio(one, other, Regime.GRAPH).value == 2.0 and ratio(one, other, Regime.PIPELINED).value == 2.5


@pytest.mark.parametrize(
    ("value", "error", "told"), [(1.43, 0.05, True), (0.9, 0.05, True), (1.43, 10.88, False), (1.0, 22.99, False)]
)
def test_figures_within_their_error_are_not_shown(value: float, error: float, told: bool) -> None:
    found = Ratio(value, error, 4)
    for text in (found.text, found.brief, found.against("bsp")):
        assert (f"{value:.2f}" in text) is told and (NOT_TOLD_APART in text) is not told


def test_each_regime_has_its_own_rounds() -> None:
    ours, theirs = in_rounds(50.0, 51.0, host=120.0, isolated=180.0), in_rounds(100.0, 102.0, host=20.0)
    assert ratio(theirs, ours, Regime.GRAPH) == Ratio(pytest.approx(2.0), pytest.approx(0.0, abs=1e-9), 2)
    assert ratio(theirs, ours).value == pytest.approx(math.sqrt(100.0 * 102.0) / 120.0)
    assert (ours.of(Regime.PIPELINED), ours.of(Regime.ISOLATED), theirs.of(Regime.PIPELINED)) == (120.0, 180.0, 101.0)
    assert ours.knows(Regime.ISOLATED) and not theirs.knows(Regime.ISOLATED)
    unknown = dataclasses.replace(theirs, host=None, host_rounds=())
    apart = dataclasses.replace(theirs, host=300.0, host_rounds=(250.0, 350.0))
    assert latency_text(apart, Regime.GRAPH) == "101.0 µs ± 12.6 %"
    assert latency_text(apart, Regime.PIPELINED) == "300.0 µs ± over 100 %"
    assert unknown.in_rounds(Regime.PIPELINED) == (100.0, 102.0) and not unknown.knows(Regime.PIPELINED)


def test_a_door_adds_to_each_regime_its_own_price_and_can_be_taken_off() -> None:
    call = in_rounds(10.0, 11.0, host=20.0, isolated=40.0)
    through = call.through(HostOverhead(host=3.0, isolated=7.0))
    assert (through.host, through.host_rounds, through.host_overhead) == (23.0, (23.0, 23.0), 3.0)
    assert (through.isolated, through.isolated_rounds, through.isolated_overhead) == (47.0, (47.0, 47.0), 7.0)
    assert through.bound == call == call.bound and (through.median, through.rounds) == (call.median, call.rounds)
    assert alike(through, call) == (call, call) == alike(call, through)
    assert alike(through, through) == (through, through) and alike(call, call) == (call, call)
    assert through.same_calls(call) and not call.same_calls(dataclasses.replace(call, rounds=(11.0, 10.0)))


def test_the_overlap_efficiency_is_the_share_of_exposed_communication_that_is_hidden() -> None:
    gemm, bsp, half = latency_of(100.0), {"slow": latency_of(300.0), "fast": latency_of(180.0)}, latency_of(140.0)
    parts = {"gemm": gemm, "all_gather": latency_of(120.0)}
    assert overlap_efficiency(half, bsp, parts) == pytest.approx(0.5), "of the faster baseline's 80, 40 are left"
    assert overlap_efficiency(gemm, bsp, parts) == pytest.approx(1.0)
    assert overlap_efficiency(latency_of(200.0), bsp, parts) < 0, "slower than the baseline"
    assert overlap_efficiency(half, bsp, {"all_gather": gemm}) is None, "no part computes"
    busy = {**bsp, "fast": latency_of(180.0, host=900.0, isolated=900.0)}
    assert overlap_efficiency(half, busy, parts) == pytest.approx(0.5), "whatever its host takes"
    assert overlap_efficiency(half, {}, parts) is None
    assert overlap_efficiency(half, {"fast": latency_of(90.0)}, parts) is None, "nothing is exposed"
