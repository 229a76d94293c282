"""The finals: the best are measured again, with the default and the baselines, before one is called best."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from autotune.config import Config
from autotune.outcome import Evaluation, Latency

Evaluate = Callable[[Config, int], Evaluation]
"""Evaluates a config in a round."""

WARM_UP = 20e3
"""Microseconds for which a finalist runs before it is measured: whatever ran before, clocks and caches are its own."""

WARM_UP_CALLS = (3, 400)
"""At least and at most: with what lies between two calls, the most take a tenth of a second."""

OTHER_MODES = 1.05
"""Each mode's fastest is a finalist if it takes less than so many times the fastest of all. All-gather + GEMM, m=8192,
four H200: the search's best four, pushes of 1281 to 1295 µs, took 1366 to 1431 in the finals, and no copy engine (1321
in the search) was there to compare them with."""

CRITICAL = {3: 6.965, 4: 4.541, 5: 3.747, 6: 3.365, 7: 3.143, 8: 2.998}
"""By the number of rounds: what Student's t with one degree of freedom less exceeds in 1 of 100 cases."""


def warm_up_calls(latency: float) -> int:
    """Calls before a finalist is measured whose latency, in microseconds, was found to be about so much."""
    least, most = WARM_UP_CALLS
    return min(most, max(least, math.ceil(WARM_UP / latency)))


def run_finals(
    finalists: Sequence[Config], rounds: int, evaluate: Evaluate, stop: Callable[[], bool]
) -> dict[Config, list[Latency]]:
    """Measure every finalist once a round, in alternating order so that a drift of the clocks cancels.

    All configs that are left have a latency for each round. A finalist that fails once is out. ``stop`` is asked before
    each round but the first.
    """
    measured: dict[Config, list[Latency]] = {config: [] for config in finalists}
    for number in range(rounds):
        if number and stop():
            break
        for config in list(measured) if number % 2 == 0 else list(reversed(measured)):
            evaluation = evaluate(config, number)
            if evaluation.latency is None:
                del measured[config]
            else:
                measured[config].append(evaluation.latency)
    return measured


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
    """The fastest baseline, unless an incumbent beats it, unless the next one beats that, unless the fastest does.

    To beat is to be faster by more than the noise. What was not measured in all rounds stands for nothing.
    """

    def median(config: Config) -> float:
        return merge(measured[config]).median

    ladder = sorted((config for config in baselines if config in measured), key=median)[:1]
    ladder += [config for config in incumbents if config in measured]
    ladder.append(min(measured, key=median))
    standing = ladder[0]
    for challenger in ladder[1:]:
        if beats(measured[challenger], measured[standing]):
            standing = challenger
    return standing


def beats(challenger: Sequence[Latency], incumbent: Sequence[Latency]) -> bool:
    """Whether a challenger is faster by more than the noise. Both were measured in the same rounds.

    From three rounds on by a paired t test of the logarithms, one-sided at 1 %: what changes from round to round for
    both alike cancels. With fewer the gain has to exceed both spreads together.
    """
    gains = [math.log(theirs.median / ours.median) for ours, theirs in zip(challenger, incumbent, strict=True)]
    gain = statistics.mean(gains)
    rounds = len(gains)
    if rounds < min(CRITICAL):
        return 1 - math.exp(-gain) > math.hypot(merge(challenger).spread, merge(incumbent).spread)
    error = statistics.stdev(gains) / math.sqrt(rounds)
    return gain > 0 and gain > CRITICAL[min(rounds, max(CRITICAL))] * error
