"""The finals: the best configs are measured again in turns with the default and the baselines before one wins."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from autotune.config import Config
from autotune.db import TrialRecord
from autotune.outcome import DEFAULT_REGIME, Evaluation, Latency, Outcome, Regime
from autotune.ranks.evaluation import FEWEST, LONGEST, MeasurePlan
from autotune.rounds import log_ratios

FINAL = "final"
"""The source of a trial in the finals, …"""
PROOF = "proof"
"""… of a finalist that failed in its proof, …"""
BASELINE = "baseline"
"""… and of the library's way before the search."""

Evaluate = Callable[[Config, int], Evaluation]
MEASURED = {"gpu": 150e3, "interpreter": 1.0}
"""Microseconds for which a finalist is measured at least, once it runs at the clocks that last, so that no swing of
the clocks fills a whole round; interpreters have no such clocks. At its power limit a GPU slows down for a tenth of a
second at a time, and the others wait for it: all-gather + GEMM, m=8192, four H200 of 700 W: pushes take 1264 to 1286
µs in their first 20 ms, 1296 to 1318 after 120 ms, and 1430 when one GPU had fallen from 1980 to 1560 MHz. The copy
engines, at 530 W, stay at 1307.
"""

ISOLATED_CALLS = 30
"""Isolated calls per finalist and round."""

BRIEFLY, FEW_ISOLATED_CALLS = 20e3, 8
"""The like where time is short: some 0.1 s a finalist and round instead of 0.3 (N=28672 K=4096, m=4 to 4096, 2 H100,
2026-11-27).
"""

LONG_BRIEFLY = 250.0
"""Microseconds of a call from which such a finalist runs at the clocks that last, too: GEMM + reduce-scatter of 2048 x
5120 x 25600 by copies took 367 to 394 µs in short finals, from the start, and lost to 375; 346 to 368 in long ones (2
H200, 2026-11-30).
"""

CLOSE = 1.02
"""A config is close if the search measured it below this multiple of the fastest. If power matters, two configs may
lose amounts that differ by this much at the clocks that last.
"""

SESSION = 100
"""More than the rounds of any finals: continued studies number their finals from the next multiple."""

CRITICAL = {
    3: 6.965, 4: 4.541, 5: 3.747, 6: 3.365, 7: 3.143, 8: 2.998, 9: 2.896, 10: 2.821, 11: 2.764, 12: 2.718,
}  # fmt: skip
"""Student's t by the number of rounds, one degree of freedom less, exceeded in 1 of 100 cases."""

WORTH_MORE_ROUNDS = 0.005
"""Lead over the winner, as a share, from which an unproven finalist gets more rounds."""


def finals_plan(
    iterations: int, kind: str = "gpu", regime: Regime = DEFAULT_REGIME, *, brief: bool = False
) -> MeasurePlan:  # fmt: skip
    """The plan for a finalist or a part of the operation on a ``kind_of`` machine; ``iterations`` is a minimum. A
    ``brief`` one runs at the clocks that last only where calls are long.
    """
    if brief and kind == "gpu":
        return MeasurePlan(
            FEWEST, iterations, iterations, warm_from=LONG_BRIEFLY, measured=BRIEFLY, isolated=FEW_ISOLATED_CALLS,
            regime=regime,
        )  # fmt: skip
    return MeasurePlan(
        FEWEST, iterations, iterations, warm_from=0.0 if kind == "gpu" else math.inf, measured=MEASURED[kind],
        longest=LONGEST[kind], isolated=ISOLATED_CALLS, regime=regime,
    )  # fmt: skip


def next_session(history: Iterable[TrialRecord]) -> int:
    """The number of the first round of the next finals after a study's history."""
    return SESSION * (1 + max((_session(record) for record in history if record.source == FINAL), default=-1))


def of_search(history: Iterable[TrialRecord]) -> list[TrialRecord]:
    """The trials of a study without those that came after its search."""
    return [record for record in history if record.source not in (FINAL, PROOF)]


def last_finals(history: Iterable[TrialRecord]) -> list[TrialRecord]:
    """The evaluations of a study's last finals; rounds of different sessions are not compared."""
    finals = [record for record in history if record.source == FINAL]
    last = max(map(_session, finals), default=0)
    return [record for record in finals if _session(record) == last]


def drift(history: Sequence[TrialRecord]) -> float | None:
    """The latency of configs in a study's last finals over that in its search, on the device: the median over configs
    with both, None without any. Quiet GPUs: 0.99 to 1.00 (five studies of 2 x H100); at their power limit up to 1.13
    (see MEASURED). One GPU that slowed down during the search: 2.03.
    """

    def medians(records: Iterable[TrialRecord]) -> dict[Config, float]:
        found: dict[Config, list[float]] = {}
        for record in records:
            if record.evaluation.latency is not None:
                found.setdefault(record.config, []).append(record.evaluation.latency.median)
        return {config: statistics.median(times) for config, times in found.items()}

    before = medians(record for record in history if record.source != FINAL)
    after = medians(last_finals(history))
    both = [after[config] / before[config] for config in after if config in before]
    return statistics.median(both) if both else None


def disqualified(history: Iterable[TrialRecord]) -> dict[Config, Evaluation]:
    """The configs of a study that cannot win, each with its failure. One that goes right the next time is a race that
    did not show. Only the library's way has a second chance, unless it was wrong or cannot run at all: it is the first
    on a cold machine.
    """
    return {
        record.config: record.evaluation
        for record in history
        if record.evaluation.latency is None
        and (record.source != BASELINE or record.evaluation.outcome in (Outcome.WRONG_RESULT, Outcome.INVALID))
    }


def _session(record: TrialRecord) -> int:
    return (record.number or 0) // SESSION


def run_finals(
    finalists: Sequence[Config], rounds: int, evaluate: Evaluate, no_time: Callable[[int], bool],
    undecided: Callable[[Mapping[Config, Sequence[Latency]]], Sequence[Config]],
    beside: Callable[[], None] = lambda: None,
) -> dict[Config, list[Latency]]:  # fmt: skip
    """Measure every finalist once per round, in alternating order so that a drift of the clocks cancels; then the
    ``undecided`` ones for as many rounds again, unless there is only one. ``beside`` has its turn in each round.

    Remaining finalists have one latency per round. A finalist that fails once is out. Before each round but the first
    ``no_time`` is asked whether there is any for so many measurements; where there is none for all, the undecided ones
    go on alone.
    """
    measured: dict[Config, list[Latency]] = {config: [] for config in finalists}
    for number in range(2 * rounds):
        if not measured:
            break
        if number == rounds or (number and no_time(len(finalists))):
            finalists = undecided(measured) if rounds > 1 else []
            if not finalists or no_time(len(finalists)):
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
    """The winner and the finalists that look faster but were not shown to be; empty if there are none."""
    if not measured:
        return []
    median = {config: _median(latencies, regime) for config, latencies in measured.items()}
    best = winner(measured, baselines, incumbents, regime)
    ahead = [config for config in measured if median[config] < (1 - WORTH_MORE_ROUNDS) * median[best]]
    return [best, *ahead] if ahead else []


def merge(latencies: Sequence[Latency]) -> Latency:
    """Merge rounds into one latency: the median round, its limits widened to those of the median rounds."""
    medians = [latency.median for latency in latencies]
    host = [latency.host for latency in latencies if latency.host is not None]
    isolated = [latency.isolated for latency in latencies if latency.isolated is not None]
    ranks = {len(latency.by_rank) for latency in latencies}
    by_rank = zip(*(latency.by_rank for latency in latencies), strict=True) if len(ranks) == 1 else ()
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


def in_finals(history: Iterable[TrialRecord]) -> dict[Config, Latency]:
    """The configs of a study's last finals that failed in no round, merged."""
    rounds: dict[Config, list[Latency | None]] = {}
    for record in last_finals(history):
        rounds.setdefault(record.config, []).append(record.evaluation.latency)
    whole = {config: [each for each in found if each is not None] for config, found in rounds.items() if all(found)}
    return {config: merge(found) for config, found in whole.items()}


def merge_parts(rounds: Sequence[Mapping[str, Latency]]) -> dict[str, Latency]:
    """Each part's rounds merged. A part that failed in a round and was measured in a later one is without rounds: they
    would be compared with other rounds of the configs.
    """
    merged = {}
    for name in dict.fromkeys(name for each in rounds for name in each):
        found = [each[name] for each in rounds if name in each]
        paired = all(name in each for each in rounds[: len(found)])
        whole = merge(found)
        merged[name] = whole if paired else replace(whole, rounds=(), host_rounds=(), isolated_rounds=())
    return merged


def winner(
    measured: Mapping[Config, Sequence[Latency]], baselines: Iterable[Config], incumbents: Iterable[Config],
    regime: Regime = DEFAULT_REGIME,
) -> Config:  # fmt: skip
    """The incumbent is the fastest of: baselines, the last winner, the default; each of the latter two replaces what
    comes before it only if it is faster by more than the noise. A finalist replaces the incumbent only if it is faster
    by more than the noise: the fastest one that is, for one with uneven rounds may not be.

    A config that failed in any round does not count. "Faster" means in the ``regime``.
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
    """True if a challenger is faster by more than the noise, in the leading rounds that both have.

    From three rounds on: a paired t test of the logarithms, one-sided at 1 %; common changes between rounds cancel. Or
    they are ``apart``. With fewer than three the gain has to exceed both spreads together.
    """
    before, after = ([each.of(regime) for each in latencies] for latencies in (incumbent, challenger))
    gains = log_ratios(before, after)
    gain = statistics.mean(gains)
    rounds = len(gains)
    if rounds < min(CRITICAL):
        return 1 - math.exp(-gain) > math.hypot(merge(challenger).spread, merge(incumbent).spread)
    error = statistics.stdev(gains) / math.sqrt(rounds)
    return gain > CRITICAL[min(rounds, max(CRITICAL))] * error or apart(after[:rounds], before[:rounds])


def apart(faster: Sequence[float], slower: Sequence[float]) -> bool:
    """True if every round of one is faster than every round of the other, by more than the rounds of each differ. Of
    the slower one only its faster half counts: some of the others took up to three times as long where the host was
    late to launch, and by that spread a config that was 9 or 12 % faster in each round had not been shown to be
    (all-reduce, m=8, 2 H100, 2026-11-28; reduce-scatter, m=14, 2 H200, 2026-11-29). Of two equal ones it is true in
    0.4 % of cases of three rounds, 0.03 % of four.
    """
    differ = (max(faster) - min(faster)) + (statistics.median(slower) - min(slower))
    return min(slower) - max(faster) > differ


def _median(latencies: Sequence[Latency], regime: Regime) -> float:
    return statistics.median(latency.of(regime) for latency in latencies)
