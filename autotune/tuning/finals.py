"""The finals: the best are measured again, with the default and the baselines, before one is called best."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence

from autotune.config import Config
from autotune.outcome import Evaluation, Latency

Evaluate = Callable[[Config, int], Evaluation]
"""Evaluates a config in a round."""


def run_finals(
    finalists: Sequence[Config], rounds: int, evaluate: Evaluate, stop: Callable[[], bool]
) -> dict[Config, Latency]:
    """Measure every finalist once a round, in alternating order so that a drift of the clocks cancels.

    A finalist that fails once is out. ``stop`` is asked before each round but the first.
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
    return {config: merge(latencies) for config, latencies in measured.items() if latencies}


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


def winner(measured: dict[Config, Latency], baselines: Iterable[Config]) -> Config:
    """The fastest; but the fastest baseline stays where nothing beats it by more than both spreads together."""
    best = min(measured, key=lambda config: measured[config].median)
    incumbents = [config for config in baselines if config in measured]
    if not incumbents or best in incumbents:
        return best
    incumbent = min(incumbents, key=lambda config: measured[config].median)
    gain = 1 - measured[best].median / measured[incumbent].median
    noise = math.hypot(measured[best].spread, measured[incumbent].spread)
    return best if gain > noise else incumbent
