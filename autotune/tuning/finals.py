"""The finals: the best are measured again, with the default and the baselines, before one is called best."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from autotune.config import Config
from autotune.outcome import Evaluation, Latency
from autotune.ranks.evaluation import MeasurePlan

Evaluate = Callable[[Config, int], Evaluation]
"""Evaluates a config in a round."""

WARM_UP = 60e3
"""Microseconds for which a finalist runs before it is measured: whatever ran before, clocks and caches are its own."""

WARM_UP_CALLS = (3, 400)
"""At least and at most: with what lies between two calls, the most take a tenth of a second."""

MEASURED = 150e3
"""Microseconds for which it is then measured at least, so that no swing of the clocks is a whole round. A GPU at its
power limit falls behind for a tenth of a second at a time, and the others wait for it: all-gather + GEMM, m=8192, four
H200 of 700 W, pushes of 1264 to 1286 µs in their first 20 ms, 1296 to 1318 after 120, and 1430 where one GPU had fallen
from 1980 to 1560 MHz. The copy engines, at 530 W, stay at 1307."""

MOST_MEASURED = 120
"""Calls that MEASURED may ask for: what takes less than a millisecond was seen to slow down by 2 % at most."""

CRITICAL = {
    3: 6.965, 4: 4.541, 5: 3.747, 6: 3.365, 7: 3.143, 8: 2.998, 9: 2.896, 10: 2.821, 11: 2.764, 12: 2.718,
}  # fmt: skip
"""By the number of rounds: what Student's t with one degree of freedom less exceeds in 1 of 100 cases."""

WORTH_MORE_ROUNDS = 0.005
"""By this share a finalist has to be ahead of the winner that it was not shown to beat."""


def finals_plan(latency: float, iterations: int) -> MeasurePlan:
    """How a finalist is measured that was found to take about ``latency`` microseconds; ``iterations`` at least."""
    fewest, most = WARM_UP_CALLS
    warm_up = min(most, max(fewest, math.ceil(WARM_UP / latency)))
    iterations = max(iterations, min(MOST_MEASURED, math.ceil(MEASURED / latency)))
    return MeasurePlan(warm_up, iterations, iterations)


def run_finals(
    finalists: Sequence[Config], rounds: int, evaluate: Evaluate, stop: Callable[[], bool],
    undecided: Callable[[Mapping[Config, Sequence[Latency]]], Sequence[Config]],
) -> dict[Config, list[Latency]]:  # fmt: skip
    """Measure every finalist once a round, in alternating order so that a drift of the clocks cancels; then those that
    are ``undecided`` by what was measured, as many rounds again.

    Who is left has a latency for each round that it was in. A finalist that fails once is out. ``stop`` is asked before
    each round but the first.
    """
    measured: dict[Config, list[Latency]] = {config: [] for config in finalists}
    for number in range(2 * rounds):
        if number and stop():
            break
        if number == rounds:
            finalists = undecided(measured)
        for config in finalists if number % 2 == 0 else reversed(finalists):
            if config not in measured:
                continue
            evaluation = evaluate(config, number)
            if evaluation.latency is None:
                del measured[config]
            else:
                measured[config].append(evaluation.latency)
    return measured


def contested(
    measured: Mapping[Config, Sequence[Latency]], baselines: Iterable[Config], incumbents: Iterable[Config]
) -> list[Config]:
    """The winner, and those that look faster but were not shown to be; empty where there are none."""
    if not measured:
        return []
    median = {config: merge(latencies).median for config, latencies in measured.items()}
    standing = winner(measured, baselines, incumbents)
    ahead = [config for config in measured if median[config] < (1 - WORTH_MORE_ROUNDS) * median[standing]]
    return [standing, *ahead] if ahead else []


def merge(latencies: Sequence[Latency]) -> Latency:
    """One latency from several rounds: the median round, its limits widened to those of the median rounds."""
    medians = [latency.median for latency in latencies]
    by_rank = zip(*(latency.by_rank for latency in latencies), strict=True)
    return Latency(
        median=statistics.median(medians),
        low=min(statistics.median(latency.low for latency in latencies), statistics.median(medians)),
        high=max(statistics.median(latency.high for latency in latencies), statistics.median(medians)),
        skew=statistics.median(latency.skew for latency in latencies),
        iterations=sum(latency.iterations for latency in latencies),
        by_rank=tuple(statistics.median(times) for times in by_rank),
    )


def winner(
    measured: Mapping[Config, Sequence[Latency]], baselines: Iterable[Config], incumbents: Iterable[Config]
) -> Config:
    """The fastest baseline, unless an incumbent beats it, unless the next one beats that, unless another finalist does.

    To beat is to be faster by more than the noise: of the other finalists the fastest wins that does so, which one with
    uneven rounds may fail to do. What was not measured in all rounds stands for nothing.
    """

    def median(config: Config) -> float:
        return merge(measured[config]).median

    ranked = sorted(measured, key=median)
    ladder = sorted((config for config in baselines if config in measured), key=median)[:1]
    ladder += [config for config in incumbents if config in measured]
    standing = ladder[0] if ladder else ranked[0]
    for challenger in ladder:
        if beats(measured[challenger], measured[standing]):
            standing = challenger
    return next((config for config in ranked if beats(measured[config], measured[standing])), standing)


def beats(challenger: Sequence[Latency], incumbent: Sequence[Latency]) -> bool:
    """Whether a challenger is faster by more than the noise, in the rounds that both were in, from the first on.

    From three rounds on by a paired t test of the logarithms, one-sided at 1 %: what changes from round to round for
    both alike cancels. With fewer the gain has to exceed both spreads together.
    """
    gains = [math.log(theirs.median / ours.median) for ours, theirs in zip(challenger, incumbent, strict=False)]
    gain = statistics.mean(gains)
    rounds = len(gains)
    if rounds < min(CRITICAL):
        return 1 - math.exp(-gain) > math.hypot(merge(challenger).spread, merge(incumbent).spread)
    error = statistics.stdev(gains) / math.sqrt(rounds)
    return gain > 0 and gain > CRITICAL[min(rounds, max(CRITICAL))] * error
