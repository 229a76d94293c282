"""The finals: the best are measured again, with the default and the baselines, before one is called best."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from autotune.config import Config
from autotune.db import TrialRecord
from autotune.outcome import DEFAULT_REGIME, Evaluation, Latency, Regime
from autotune.ranks.evaluation import FEWEST, MeasurePlan
from autotune.rounds import log_ratios

FINAL = "final"
"""The source of a trial that is a round of a finalist."""

Evaluate = Callable[[Config, int], Evaluation]
"""Evaluates a config in a round."""

MEASURED = 150e3
"""Microseconds for which a finalist is measured at least, once it runs at the clocks that last, so that no swing of the
clocks is a whole round. A GPU at its power limit falls behind for a tenth of a second at a time, and the others wait
for it: all-gather + GEMM, m=8192, four H200 of 700 W, pushes of 1264 to 1286 µs in their first 20 ms, 1296 to 1318
after 120, and 1430 where one GPU had fallen from 1980 to 1560 MHz. The copy engines, at 530 W, stay at 1307."""

ISOLATED_CALLS = 30
"""Single calls of each finalist in each round."""

CLOSE = 1.02
"""A config is close that the search found to take less than so many times the fastest: where power matters, so much
lies between what two configs lose at the clocks that last."""

SESSION = 100
"""More than the rounds of any finals: the finals of a study that was continued count theirs from the next multiple."""

CRITICAL = {
    3: 6.965, 4: 4.541, 5: 3.747, 6: 3.365, 7: 3.143, 8: 2.998, 9: 2.896, 10: 2.821, 11: 2.764, 12: 2.718,
}  # fmt: skip
"""By the number of rounds: what Student's t with one degree of freedom less exceeds in 1 of 100 cases."""

WORTH_MORE_ROUNDS = 0.005
"""By this share a finalist has to be ahead of the winner that it was not shown to beat."""


def finals_plan(iterations: int, regime: Regime = DEFAULT_REGIME) -> MeasurePlan:
    """How a finalist is measured, and a part of the operation; ``iterations`` at least."""
    return MeasurePlan(
        FEWEST, iterations, iterations, warm_from=0.0, measured=MEASURED, isolated=ISOLATED_CALLS, regime=regime
    )


def next_session(history: Iterable[TrialRecord]) -> int:
    """The number of the first round of finals that come after those in a study's history."""
    return SESSION * (1 + max((_session(record) for record in history if record.source == FINAL), default=-1))


def last_finals(history: Iterable[TrialRecord]) -> list[TrialRecord]:
    """The evaluations of a study's last finals: rounds of different sessions are not compared."""
    finals = [record for record in history if record.source == FINAL]
    last = max(map(_session, finals), default=0)
    return [record for record in finals if _session(record) == last]


def _session(record: TrialRecord) -> int:
    return (record.number or 0) // SESSION


def run_finals(
    finalists: Sequence[Config], rounds: int, evaluate: Evaluate, stop: Callable[[], bool],
    undecided: Callable[[Mapping[Config, Sequence[Latency]]], Sequence[Config]],
    beside: Callable[[], None] = lambda: None,
) -> dict[Config, list[Latency]]:  # fmt: skip
    """Measure every finalist once a round, in alternating order so that a drift of the clocks cancels; then those that
    are ``undecided`` by what was measured, as many rounds again. What comes ``beside`` has its turn in each round.

    Who is left has a latency for each round that it was in. A finalist that fails once is out. ``stop`` is asked before
    each round but the first.
    """
    measured: dict[Config, list[Latency]] = {config: [] for config in finalists}
    for number in range(2 * rounds):
        if number and stop():
            break
        if number == rounds:
            finalists = undecided(measured)
            if not finalists:
                break
        if number % 2:
            beside()
        for config in finalists if number % 2 == 0 else reversed(finalists):
            if config not in measured:
                continue
            evaluation = evaluate(config, number)
            if evaluation.latency is None:
                del measured[config]
            else:
                measured[config].append(evaluation.latency)
        if number % 2 == 0:
            beside()
    return measured


def contested(
    measured: Mapping[Config, Sequence[Latency]], baselines: Iterable[Config], incumbents: Iterable[Config],
    regime: Regime = DEFAULT_REGIME,
) -> list[Config]:  # fmt: skip
    """The winner, and those that look faster but were not shown to be; empty where there are none."""
    if not measured:
        return []
    median = {config: _median(latencies, regime) for config, latencies in measured.items()}
    best = winner(measured, baselines, incumbents, regime)
    ahead = [config for config in measured if median[config] < (1 - WORTH_MORE_ROUNDS) * median[best]]
    return [best, *ahead] if ahead else []


def merge(latencies: Sequence[Latency]) -> Latency:
    """One latency from several rounds: the median round, its limits widened to those of the median rounds."""
    medians = [latency.median for latency in latencies]
    host = [latency.host for latency in latencies if latency.host is not None]
    isolated = [latency.isolated for latency in latencies if latency.isolated is not None]
    by_rank = zip(*(latency.by_rank for latency in latencies), strict=True)
    return Latency(
        median=statistics.median(medians),
        low=min(statistics.median(latency.low for latency in latencies), statistics.median(medians)),
        high=max(statistics.median(latency.high for latency in latencies), statistics.median(medians)),
        skew=statistics.median(latency.skew for latency in latencies),
        iterations=sum(latency.iterations for latency in latencies),
        by_rank=tuple(statistics.median(times) for times in by_rank),
        host=statistics.median(host) if host else None,
        isolated=statistics.median(isolated) if isolated else None,
        rounds=tuple(medians),
        host_rounds=tuple(host) if len(host) == len(medians) else (),
        isolated_rounds=tuple(isolated) if len(isolated) == len(medians) else (),
    )


def winner(
    measured: Mapping[Config, Sequence[Latency]], baselines: Iterable[Config], incumbents: Iterable[Config],
    regime: Regime = DEFAULT_REGIME,
) -> Config:  # fmt: skip
    """The incumbent is the fastest of: baselines, the last winner, the default; each of the latter two replaces what
    comes before it only if it is faster by more than the noise. A finalist replaces the incumbent only if it is faster
    by more than the noise: the fastest one that is, for one with uneven rounds may not be.

    A config that failed in any round does not count. "Faster" is meant in the ``regime``.
    """

    def median(config: Config) -> float:
        return _median(measured[config], regime)

    ranked, known = sorted(measured, key=median), set(baselines)
    incumbent = next((config for config in ranked if config in known), None)
    for challenger in incumbents:
        if challenger in measured and (incumbent is None or beats(measured[challenger], measured[incumbent], regime)):
            incumbent = challenger
    if incumbent is None:
        return ranked[0]
    return next((config for config in ranked if beats(measured[config], measured[incumbent], regime)), incumbent)


def beats(challenger: Sequence[Latency], incumbent: Sequence[Latency], regime: Regime = DEFAULT_REGIME) -> bool:
    """True if a challenger is faster by more than the noise, in the rounds that both were in, from the first on.

    From three rounds on by a paired t test of the logarithms, one-sided at 1 %: what changes from round to round for
    both alike cancels. With fewer the gain has to exceed both spreads together.
    """
    gains = log_ratios([each.of(regime) for each in incumbent], [each.of(regime) for each in challenger])
    gain = statistics.mean(gains)
    rounds = len(gains)
    if rounds < min(CRITICAL):
        return 1 - math.exp(-gain) > math.hypot(merge(challenger).spread, merge(incumbent).spread)
    error = statistics.stdev(gains) / math.sqrt(rounds)
    return gain > 0 and gain > CRITICAL[min(rounds, max(CRITICAL))] * error


def _median(latencies: Sequence[Latency], regime: Regime) -> float:
    return statistics.median(latency.of(regime) for latency in latencies)
