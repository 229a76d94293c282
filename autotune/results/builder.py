"""Builds a report from the database, one function per part."""

from __future__ import annotations

import dataclasses
import math
import statistics
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

from autotune.config import Config
from autotune.db import Entry, Provenance, Store, TrialRecord, Winner
from autotune.errors import InputError
from autotune.outcome import Latency, Outcome, Regime
from autotune.ranks.evaluation import RESTART
from autotune.results.copies import copies
from autotune.results.figures import (
    INTERPRETER_NOTE,
    drift_text,
    evaluated,
    fastest,
    overlap_efficiency,
    ratio,
    slowest,
)
from autotune.results.knobs import knobs_of
from autotune.results.model import Ending, Limit, Ranked, Report, Speedup, Tax
from autotune.results.order import config_in_order, fields_in_order
from autotune.results.regimes import in_regimes, is_captured, verdicts
from autotune.results.repeat import repeat_text
from autotune.results.routings import under_routings
from autotune.rounds import mean_and_error
from autotune.search_spaces import Space
from autotune.taxes.result import Taxes
from autotune.workloads import Workload

BEST = 10
"""The number of best configs in a report."""

FEWEST_RANKED = 10
"""Below this number of measured predictions, a rank correlation would be noise."""


def build(store: Store, entry: Entry, workload: Workload | None = None) -> Report:
    """The report of a finished study.

    The workload, if it can be loaded, gives the order of the fields, and the dimensions' order, help and importance. A
    space whose fingerprint has changed since the study is not used.
    """
    # Loads Optuna, which the command line's help can do without.
    from autotune.tuning.finals import FINAL, disqualified, drift, last_finals, of_search

    space = space_of(workload, entry.provenance)
    interpreted = entry.key.is_interpreted  # then what only GPUs have is left out: limits, regimes, taxes

    def ordered(config: Config) -> Config:
        return config_in_order(entry.key, config, workload)

    known = store.trials(entry.study_id, None if space is None else space.holds)
    records = [dataclasses.replace(each, config=ordered(each.config)) for each in known]
    notes = [INTERPRETER_NOTE] if interpreted else []
    if entry.imported_at is not None:
        notes.append("Imported: its trials are in the database it was tuned in.")
    if entry.provenance.replay_of:
        notes.append(f"A replay of a table recorded {entry.provenance.replay_of}: its times were measured on that day.")
    elif workload is not None and space is None:
        notes.append("The search space has changed since; dimensions are shown without importance.")
    if not interpreted and (told := drift_text(drift(records))):
        notes.append(told)
    regime = Regime(entry.key.regime)
    if workload is not None and workload.space.holds(entry.winner.config):
        unlike = workload.unlike_measured(entry.winner.config, regime)
        notes += [f"No look-up serves this config: {unlike}. Tune again."] if unlike is not None else []
    searched = of_search(records)
    failed = disqualified(records)
    best, out = _ranked(searched, last_finals(records), failed, entry.winner.config, regime)
    knobs, warned = knobs_of(searched, space, regime)
    restarts = [phases[RESTART] for record in records if RESTART in (phases := record.evaluation.seconds)]
    return Report(
        key=entry.key,
        provenance=entry.provenance,
        problem=fields_in_order(entry.key, workload),
        study_id=entry.study_id,
        seed=entry.seed,
        space_size=entry.space_size,
        finished_at=entry.finished_at,
        config=ordered(entry.winner.config),
        latency=entry.winner.latency,
        speedups=_speedups(entry.winner, regime, interpreted),
        limit=None if interpreted else _limit(entry.winner),
        roofline=entry.winner.roofline,
        in_regimes={} if interpreted else in_regimes(entry.winner),
        verdicts=() if interpreted else verdicts(entry.winner),
        routings=under_routings(entry.key, entry.winner),
        taxes=() if interpreted else _taxes(entry.winner),
        ladder=_ladder(store, entry.study_id, notes),
        best=best[:BEST],
        endings=endings_of(searched),
        disqualified=out,
        knobs=knobs,
        searched=evaluated(Counter(record.evaluation.outcome for record in searched)),
        remeasured=sum(record.source == FINAL for record in records),
        seconds=sum(_seconds(record.evaluation.seconds) for record in records),
        measuring=sum(record.evaluation.seconds.get("measure", 0.0) for record in records),
        restarts=len(restarts),
        restarting=sum(restarts),
        rank_correlation=rank_correlation(searched),
        notes=tuple(notes),
        knob_notes=warned,
        origin=entry.origin,
        copies=copies(entry.key, entry.winner.config, entry.origin, workload),
        repeat=repeat_text(entry, workload),
    )


def space_of(workload: Workload | None, searched: Provenance) -> Space | None:
    """The workload's space, unless it has changed since it was searched."""
    if workload is None or workload.space.fingerprint() != searched.space:
        return None
    return workload.space


def _ladder(store: Store, study_id: int, notes: list[str]) -> Taxes | None:
    """Result that ``tune taxes`` has stored; a note if it cannot be read."""
    text = store.taxes(study_id)
    try:
        return None if text is None else Taxes.from_json(text)
    except InputError as error:
        notes.append(f"{error}.")
        return None


def rank_correlation(searched: Sequence[TrialRecord]) -> float | None:
    """Spearman's rank correlation of predicted and measured latencies; None below ``FEWEST_RANKED`` pairs."""
    pairs = [
        (record.predicted, record.evaluation.latency.median)
        for record in searched
        if record.predicted is not None and record.evaluation.latency is not None
    ]
    if len(pairs) < FEWEST_RANKED or any(len(set(side)) == 1 for side in zip(*pairs, strict=True)):
        return None
    predicted, measured = (_ranks(side) for side in zip(*pairs, strict=True))
    return statistics.correlation(predicted, measured)


def _ranks(values: Sequence[float]) -> list[float]:
    """Equal values share the mean of their ranks."""
    ordered = sorted(values)
    return [(bisect_left(ordered, value) + bisect_right(ordered, value)) / 2 for value in values]


def _speedups(winner: Winner, regime: Regime, interpreted: bool) -> tuple[Speedup, ...]:
    ranked = sorted(winner.baselines.items(), key=lambda pair: pair[1].of(regime))
    return tuple(
        Speedup(name, latency, None if interpreted else ratio(latency, winner.latency, regime))
        for name, latency in ranked
    )


def _limit(winner: Winner) -> Limit | None:
    name = slowest(winner.limits)
    if name is None:
        return None
    shares = {part: ratio(latency, winner.latency, Regime.GRAPH) for part, latency in winner.limits.items()}
    efficiency = overlap_efficiency(winner.latency, winner.baselines, winner.limits)
    return Limit(dict(winner.limits), shares, name, efficiency)


def _taxes(winner: Winner) -> tuple[Tax, ...]:
    """The taxes as far as measured: kernel launch is eager minus graph, the rest BSP minus its slowest part."""
    taxes = []
    eager = next((latency for name, latency in winner.baselines.items() if name.endswith("eager")), None)
    graph = next((latency for name, latency in winner.baselines.items() if is_captured(name)), None)
    if eager is not None and graph is not None:
        taxes.append(_difference("kernel launch", eager, graph, "eager baseline minus graph baseline"))
    baseline, part = fastest(winner.baselines, Regime.GRAPH), slowest(winner.limits)
    if baseline is not None and part is not None:
        meaning = f"{baseline} minus its slowest part ({part}): the most that perfect overlap can win"
        taxes.append(
            _difference("bulk synchrony and locality", winner.baselines[baseline], winner.limits[part], meaning)
        )
        if not winner.baselines[baseline].same_calls(winner.latency):
            meaning = f"{baseline} minus the winner"
            taxes.append(_difference("won back by the winner", winner.baselines[baseline], winner.latency, meaning))
    return tuple(taxes)


def _difference(name: str, one: Latency, other: Latency, meaning: str) -> Tax:
    """The difference on the device, round by round if there are rounds."""
    by_round = [ours - theirs for ours, theirs in zip(one.rounds, other.rounds, strict=False)]
    if len(by_round) < 2:
        error = math.hypot(one.spread * one.median, other.spread * other.median)
        return Tax(name, one.median - other.median, error, meaning)
    return Tax(name, *mean_and_error(by_round), meaning)


def _ranked(
    searched: Sequence[TrialRecord], finals: Sequence[TrialRecord], failed: Collection[Config], winner: Config,
    regime: Regime,
) -> tuple[tuple[Ranked, ...], tuple[Ranked, ...]]:  # fmt: skip
    """The measured configs, best first, and those of them that have ``failed`` when they were checked again."""
    from autotune.tuning.finals import merge

    rounds: dict[Config, list[Latency]] = defaultdict(list)
    for record in finals:
        if record.evaluation.latency is not None:
            rounds[record.config].append(record.evaluation.latency)
    merged = {config: merge(latencies) for config, latencies in rounds.items() if config not in failed}
    found: dict[Config, Ranked] = {}
    for record in searched:
        latency = record.evaluation.latency
        if latency is not None and record.config not in found:
            found[record.config] = Ranked(
                record.config, latency, merged.get(record.config), record.source, record.config == winner
            )
    ranked = sorted(found.values(), key=lambda each: each.latency.of(regime))
    return (
        tuple(each for each in ranked if each.config not in failed),
        tuple(each for each in ranked if each.config in failed),
    )


def endings_of(searched: Sequence[TrialRecord]) -> tuple[Ending, ...]:
    """Every kind of outcome that occurred, the commonest first, each with its first reason; last those that were not
    tried at all.
    """
    counts = Counter(record.evaluation.outcome for record in searched)
    examples: dict[Outcome, TrialRecord] = {}
    for record in searched:
        if record.evaluation.reason:
            examples.setdefault(record.evaluation.outcome, record)
    endings = []
    for outcome, count in sorted(counts.items(), key=lambda pair: (pair[0] is Outcome.INVALID, -pair[1])):
        example = examples.get(outcome)
        reason = example.evaluation.reason if example else ""
        endings.append(Ending(outcome, count, reason, example.config if example else None))
    return tuple(endings)


def _seconds(phases: Mapping[str, float]) -> float:
    return phases["total"] if "total" in phases else sum(phases.values())
