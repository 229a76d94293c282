"""The finals: who is measured again, how often, and who wins."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from fakes import latency_of

from autotune.config import Config
from autotune.db import TrialRecord
from autotune.outcome import Evaluation, Latency, Outcome, Regime
from autotune.tuning.finals import (
    beats,
    contested,
    drift,
    finals_plan,
    last_finals,
    merge,
    merge_parts,
    next_session,
    run_finals,
    winner,
)

A, B, C = (Config({"mode": name}) for name in "abc")


def test_a_part_that_failed_between_two_rounds_is_compared_with_no_other_rounds() -> None:
    one, two, three = ({"gemm": latency_of(time), "gather": latency_of(2 * time)} for time in (50.0, 51.0, 52.0))
    assert merge_parts([one, two, three])["gemm"].rounds == (50.0, 51.0, 52.0)
    assert merge_parts([one, two, {}])["gemm"].rounds == (50.0, 51.0), "the leading ones still go together"
    gap = merge_parts([one, {"gather": two["gather"]}, three])
    assert (gap["gemm"].median, gap["gemm"].rounds) == (51.0, ())
    assert gap["gather"].rounds == (100.0, 102.0, 104.0)
    assert merge_parts([{}, {}]) == {}


def rounds_of(*medians: float) -> list[Latency]:
    return [latency_of(median) for median in medians]


def measured_in(median: float) -> Evaluation:
    return Evaluation(Outcome.MEASURED, latency=latency_of(median))


def test_the_incumbent_stays_within_the_noise() -> None:
    assert winner({A: rounds_of(100.0), B: rounds_of(99.5)}, [A], []) == A
    assert winner({A: rounds_of(100.0), B: rounds_of(95.0)}, [A], []) == B
    assert winner({A: rounds_of(100.0), B: rounds_of(120.0)}, [A], []) == A
    assert winner({B: rounds_of(100.0), C: rounds_of(99.9)}, [A], []) == C, "A failed"
    assert winner({A: rounds_of(100.0), B: rounds_of(99.5), C: rounds_of(95.0)}, [A, B], []) == C
    assert winner({A: rounds_of(100.0), B: rounds_of(95.0), C: rounds_of(94.5)}, [A], [B]) == B, "C does not beat B"
    assert winner({A: rounds_of(100.0), B: rounds_of(99.5), C: rounds_of(95.0)}, [A], [B]) == C
    assert winner({A: rounds_of(100.0), B: rounds_of(99.5), C: rounds_of(99.2)}, [A], [B, C]) == A, (
        "neither beats the baseline"
    )


@pytest.mark.parametrize("rounds", [2, 4])
@pytest.mark.parametrize(
    ("regime", "best"), [(Regime.GRAPH, A), (Regime.PIPELINED, B), (Regime.ISOLATED, A)], ids=lambda each: str(each)
)
def test_the_one_that_wins_is_the_fastest_in_the_regime(regime: Regime, best: Config, rounds: int) -> None:
    times = {A: latency_of(100.0, host=150.0, isolated=300.0), B: latency_of(120.0, host=130.0, isolated=400.0)}
    measured = {config: [latency] * rounds for config, latency in times.items()}
    for baseline in times:
        assert winner(measured, [baseline], [], regime) == winner(measured, [], [baseline], regime) == best
        assert winner(measured, [], [], regime) == best


def test_only_the_last_session_s_rounds_are_final_and_the_drift_is_theirs() -> None:
    def record(source: str, number: int, median: float) -> TrialRecord:
        return TrialRecord(A, measured_in(median), source, number)

    search, first = record("sampler", 7, 100.0), [record("final", number, 300.0) for number in (0, 1)]
    last = [record("final", number, 110.0 + number) for number in (100, 101)]
    assert last_finals([search, *first, *last]) == last and next_session([search, *first, *last]) == 200
    assert drift([search, *first, *last]) == pytest.approx(2.105)
    assert drift([search]) is None is drift(last)


def test_where_the_fastest_has_uneven_rounds_another_may_win() -> None:
    measured = {
        A: rounds_of(44.7, 44.2, 44.1, 44.1),  # four H200, all-gather + GEMM, m=64: the default and two pushes
        B: rounds_of(42.9, 42.8, 43.0, 43.8),
        C: rounds_of(43.1, 43.6, 42.9, 43.1),
    }
    assert merge(measured[B]).median < merge(measured[C]).median and not beats(measured[B], measured[A])
    assert winner(measured, [], [A]) == C
    assert winner({A: measured[A], B: measured[B]}, [], [A]) == A


def test_with_three_rounds_what_both_have_in_common_is_no_noise() -> None:
    drifting = rounds_of(100.0, 110.0, 120.0, 130.0)
    faster = rounds_of(99.5, 109.4, 119.5, 129.4)
    at_times = rounds_of(97.0, 111.0, 117.0, 131.0)
    assert beats(faster, drifting) and not beats(drifting, faster)
    assert not beats(at_times, drifting), "faster by more on average, but not from round to round"
    assert not beats(faster[:2], drifting[:2]), "two rounds tell only what exceeds the spread of either"
    assert not beats(drifting, drifting)


@pytest.mark.parametrize("late", [1, 2, 3, 4])
def test_rounds_in_which_the_host_was_late_do_not_save_the_incumbent(late: int) -> None:
    busy = rounds_of(*[94.2, 194.8, 133.7, 108.9, 97.1][: 1 + late], *[94.2] * (7 - late))
    steady = rounds_of(*[86.5, 86.6] * 4)
    assert beats(steady, busy) and not beats(busy, steady)
    assert not beats([*steady[:7], latency_of(95.0)], busy), "one of them was lost"


def test_one_late_round_of_three_does_not_save_the_incumbent() -> None:
    late = rounds_of(167.5, 57.6, 57.6)  # the library of a reduce-scatter, m=14, two H200
    assert beats(rounds_of(50.9, 50.7, 51.0), late)
    assert not beats(rounds_of(50.9, 50.7, 55.0), late), "its own rounds differ as much as it is ahead"


@pytest.mark.parametrize("rounds", [3, 4, 6, 8])
def test_one_that_is_as_fast_seldom_beats_the_incumbent_and_a_faster_one_mostly(rounds: int) -> None:
    rng, draws = np.random.default_rng(3), 500

    def times(median: float) -> list[Latency]:
        return rounds_of(*(median * np.exp(rng.normal(0, 0.003, rounds))))

    wrong = sum(beats(times(100.0), times(100.0)) for _ in range(draws)) / draws
    allowed = 0.015  # 0.01 of the t test, the rest of rounds that are apart
    assert wrong <= allowed + 3.1 * math.sqrt(allowed * (1 - allowed) / draws)
    assert sum(beats(times(97.0), times(100.0)) for _ in range(draws)) / draws > 0.75


def finals(times: dict[Config, Iterator[float]], more: bool = True) -> tuple[Config, list[int]]:
    """The winner if A is the incumbent and a round of each config takes its next time; and the rounds of each."""

    undecided = partial(contested, baselines=[], incumbents=[A])
    measured = run_finals(
        list(times), 4, lambda config, number: measured_in(next(times[config])), lambda _: False,
        undecided if more else lambda measured: [],
    )  # fmt: skip
    return winner(measured, [], [A]), [len(latencies) for latencies in measured.values()]


def test_more_rounds_are_for_those_that_may_yet_win() -> None:
    steady, slow = itertools.repeat(44.4), itertools.repeat(50.0)
    uneven = itertools.cycle((43.5, 43.5, 43.6, 44.5))
    assert finals({A: steady, B: uneven, C: slow}) == (B, [8, 8, 4]), "four rounds do not show it, eight do"
    assert finals({A: steady, B: slow, C: slow}) == (A, [4, 4, 4])
    assert finals({A: steady, B: itertools.repeat(43.0), C: slow}) == (B, [4, 4, 4]), "nothing is left to be shown"
    assert finals({A: steady, B: itertools.repeat(44.3), C: slow})[1] == [4, 4, 4], "not worth more rounds"


def test_time_that_is_up_ends_them_and_so_does_a_failure_in_the_midst() -> None:
    times = {A: 44.4, B: 43.0, C: 43.0}
    rounds = []

    def evaluate(config: Config, number: int) -> Evaluation:
        rounds.append(number)
        if config == B and number == 5:
            return Evaluation(Outcome.TIMED_OUT)
        return measured_in(times[config])

    measured = run_finals([A, B, C], 4, evaluate, lambda _: rounds.count(6) > 0, lambda measured: [A, B])
    assert {config: len(latencies) for config, latencies in measured.items()} == {A: 7, C: 4}


def test_where_there_is_no_time_for_all_those_that_may_yet_win_have_it() -> None:
    medians = {A: iter((94.2, 94.3, 94.2, 94.3)), B: iter((91.0, 90.1, 90.2, 90.1)), C: iter((120.0,))}
    asked = []

    def no_time(measurements: int) -> bool:
        asked.append(measurements)
        return measurements > 2 or len(asked) > 6

    def evaluate(config: Config, number: int) -> Evaluation:
        return Evaluation(Outcome.MEASURED, latency=replace(latency_of(next(medians[config])), low=85.0, high=101.0))

    undecided = partial(contested, baselines=[A], incumbents=[])
    measured = run_finals([A, B, C], 4, evaluate, no_time, undecided)
    assert asked[:2] == [3, 2] and {config: len(found) for config, found in measured.items()} == {A: 4, B: 4, C: 1}
    assert winner({A: measured[A][:1], B: measured[B][:1]}, [A], []) == A, "one round does not show it"
    assert winner(measured, [A], []) == B


def test_looking_twice_makes_few_more_mistakes_and_finds_more_that_are_faster() -> None:
    rng, draws = np.random.default_rng(5), 500

    def wins(median: float, more: bool) -> float:
        def times(median: float) -> Iterator[float]:
            return iter(median * np.exp(rng.normal(0, 0.01, 8)))

        return sum(finals({A: times(100.0), B: times(median)}, more)[0] == B for _ in range(draws)) / draws

    assert wins(100.0, more=True) <= 0.02 + 3.1 * math.sqrt(0.02 * 0.98 / draws)
    assert wins(98.0, more=True) > wins(98.0, more=False) + 0.2


def test_a_finalist_runs_for_a_while_before_it_is_measured() -> None:
    plans = [finals_plan(30).for_calls_of(latency) for latency in (1.0, 50.0, 1500.0, 19e3, 1e6, 1e8)]
    assert [plan.warmup for plan in plans] == [400, 400, 40, 4, 3, 3]
    assert [plan.iterations for plan in plans] == [120, 120, 100, 30, 3, 3]
    assert all(plan.screen == plan.iterations for plan in plans), "none is dropped half-way"
    plans = [finals_plan(30, "interpreter").for_calls_of(latency) for latency in (100.0, 1e5)]
    assert [(plan.warmup, plan.iterations, plan.screen) for plan in plans] == [(3, 30, 30), (3, 3, 3)]


def test_which_are_undecided_depends_on_the_regime() -> None:
    measured = {A: [latency_of(100.0, host=111.0)] * 2, B: [latency_of(100.0, host=110.0)] * 2}
    assert contested(measured, [A], [], Regime.PIPELINED) == [A, B]
    assert contested(measured, [A], [], Regime.GRAPH) == []


def test_a_single_round_is_never_repeated() -> None:
    calls = []

    def evaluate(config: Config, number: int) -> Evaluation:
        calls.append(number)
        return measured_in(100.0)

    run_finals([A, B], 1, evaluate, no_time=lambda _: False, undecided=lambda measured: [A, B])
    assert calls == [0, 0]
