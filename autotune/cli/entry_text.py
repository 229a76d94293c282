"""An entry of the cache, as lines for people and as values for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from autotune.db import CacheKey, Entry, Winner
from autotune.outcome import DEFAULT_REGIME, Latency, Regime
from autotune.results.copies import copies
from autotune.results.figures import (
    BEYOND_LIMIT,
    BEYOND_ROOFLINE,
    INTERPRETER_NOTE,
    NOT_TOLD_APART,
    config_text,
    dashed,
    device_text,
    efficiency_text,
    fastest,
    latency_text,
    microseconds,
    overlap_efficiency,
    problem_text,
    ratio,
    regime_options,
    resource_text,
    share_text,
    slowest,
)
from autotune.results.order import config_in_order, fields_in_order, problem_type
from autotune.results.regimes import TITLES, conclusion, door_text, in_regimes, title_of, verdicts
from autotune.results.routings import line, under_routings
from autotune.results.staleness import why_stale
from autotune.results.words import has_words, in_words
from autotune.workloads import Workload

Lines = list[tuple[str, str]]


def entry_dict(entry: Entry) -> dict[str, Any]:
    key = dataclasses.asdict(entry.key)
    return {
        **key,
        "problem": fields_in_order(entry.key),
        **winner_dict(entry.winner, Regime(entry.key.regime)),
        "provenance": dataclasses.asdict(entry.provenance),
        "origin": entry.origin,
        "study": entry.study_id,
        "trials": entry.trials,
        "finished_at": entry.finished_at.isoformat(),
        "imported_at": entry.imported_at.isoformat() if entry.imported_at is not None else None,
    }


def winner_dict(winner: Winner, regime: Regime = DEFAULT_REGIME) -> dict[str, Any]:
    """A config with its latency, its baselines and how it compares with them; programs know what interpreted times are
    worth.
    """
    limit = slowest(winner.limits)
    share = ratio(winner.limits[limit], winner.latency, Regime.GRAPH).value if limit is not None else None
    roofline = winner.roofline
    return {
        "config": dict(winner.config),
        "latency": dataclasses.asdict(winner.latency),
        "microseconds": winner.latency.of(regime),
        "baselines": {name: dataclasses.asdict(latency) for name, latency in winner.baselines.items()},
        "speedups": _speedups(winner.baselines, winner.latency, regime),
        "in_regimes": in_regimes(winner),
        "routings": {
            name: {
                "microseconds": each.latency.of(regime),
                **dataclasses.asdict(each),
                "speedups": _speedups(each.baselines, each.latency, regime),
            }
            for name, each in winner.routings.items()
        },
        "slower_than": {each.regime.value: each.baseline for each in verdicts(winner) if each.ratio.is_less},
        "limits": {name: dataclasses.asdict(latency) for name, latency in winner.limits.items()},
        "limit_share": share,
        "overlap_efficiency": overlap_efficiency(winner.latency, winner.baselines, winner.limits),
        "roofline": dataclasses.asdict(roofline) if roofline is not None else None,
        "roofline_share": roofline.limit / winner.latency.median if roofline is not None else None,
    }


def _speedups(baselines: Mapping[str, Latency], latency: Latency, regime: Regime) -> dict[str, dict[str, Any]]:
    return {name: dataclasses.asdict(ratio(each, latency, regime)) for name, each in baselines.items()}


def title(workload: str, problem: Mapping[str, Any]) -> str:
    return f"{dashed(workload)}  {problem_text(problem)}"


def short_problem(key: CacheKey) -> str:
    """A stored problem in one line, without fields that have their default."""
    fields, defaults = fields_in_order(key), _defaults(key)
    return problem_text({name: value for name, value in fields.items() if value != defaults.get(name)})


def _defaults(key: CacheKey) -> dict[str, Any]:
    """The defaults of a workload's fields; nothing if it is not known here."""
    kind = None if key.is_kernel else problem_type(key.workload)
    return {field.name: field.default for field in dataclasses.fields(kind)} if kind is not None else {}


def entry_title(entry: Entry) -> str:
    """Workload, problem and regime of an entry in one line."""
    regime = "" if entry.key.is_kernel else regime_options(entry.key.regime)
    return title(entry.key.workload, fields_in_order(entry.key)) + regime


def winner_lines(key: CacheKey, winner: Winner, name: str = "winner") -> Lines:
    """The config, in figures and in words, its latency, its speedups, the regimes, its share of the limits."""
    regime, config = Regime(key.regime), config_in_order(key, winner.config)
    tuned_for = "" if regime is DEFAULT_REGIME or key.is_interpreted else f", {title_of(key, regime)}"
    lines = [(name, f"{latency_text(winner.latency, regime)}{tuned_for}, skew {microseconds(winner.latency.skew)}")]
    lines += [("config", config_text(config)), *([("", in_words(key.workload, config))] if has_words(key) else [])]
    for i, (baseline, latency) in enumerate(_fastest_first(winner.baselines, regime)):
        text = f"{ratio(latency, winner.latency, regime).against(baseline)} ({latency_text(latency, regime)})"
        if key.is_interpreted:
            text = f"{baseline} {latency_text(latency, regime)}"
        if latency.same_calls(winner.latency):
            text = f"none: no config beat {baseline} by more than the noise"
        lines.append(("" if i else "baselines" if key.is_interpreted else "speedup", text))
    lines += [*_regime_lines(winner), *_routing_lines(key, winner)]
    return lines if key.is_interpreted else [*lines, *_limit_lines(winner)]


def _regime_lines(winner: Winner) -> Lines:
    """Empty if only one regime was measured, as under the interpreter."""
    found = in_regimes(winner)
    if all(len(known) < 2 for known in found.values()):
        return []
    texts = [
        f"{name}: " + ", ".join(f"{TITLES[Regime(each)]} {microseconds(value)}" for each, value in known.items())
        for name, known in found.items()
    ]
    texts += filter(None, [conclusion(verdicts(winner)), door_text(winner.latency)])
    return [("" if i else "regimes", text) for i, text in enumerate(texts)]


def _routing_lines(key: CacheKey, winner: Winner) -> Lines:
    """Empty for other problems than a mixture's."""
    rows = under_routings(key, winner)
    texts = [line(row, Regime(key.regime)) for row in rows[1:]] or ["not measured under others"] * len(rows)
    return [("" if i else "routings", text) for i, text in enumerate(texts)]


def _limit_lines(winner: Winner) -> Lines:
    lines = []
    limit, roofline = slowest(winner.limits), winner.roofline
    if limit is not None:
        share = ratio(winner.limits[limit], winner.latency, Regime.GRAPH).value
        parts = ", ".join(f"{part} alone {microseconds(latency.median)}" for part, latency in winner.limits.items())
        lines.append(("limit", f"{share_text(share, 'limit', BEYOND_LIMIT)}: {parts}"))
    efficiency = overlap_efficiency(winner.latency, winner.baselines, winner.limits)
    if efficiency is not None:
        lines.append(("overlap", efficiency_text(efficiency)))
    if roofline is not None:
        share = roofline.limit / winner.latency.median
        what = f"{resource_text(roofline.slowest)} busy for {microseconds(roofline.limit)} at this device's rates"
        lines.append(("roofline", f"{share_text(share, 'roofline', BEYOND_ROOFLINE)}: {what}"))
    return lines


def entry_lines(entry: Entry, workload: Workload | None = None) -> Lines:
    provenance = ", ".join(f"{name} {value or 'none'}" for name, value in dataclasses.asdict(entry.provenance).items())
    lines = [("device", device_text(entry.key)), *winner_lines(entry.key, entry.winner)]
    lines += [
        ("trials", f"{entry.trials}, finals and invalid ones included"),
        ("tuned", f"{entry.finished_at:%Y-%m-%d %H:%M} UTC, study {entry.study_id}{_origin(entry)}"),
        ("with", provenance),
    ]
    if entry.key.is_kernel:
        lines.append(("kernel", f"{entry.origin or 'decorated'}; a launch gets this as long as its source and configs "
                                "are unchanged"))  # fmt: skip
    elif entry.origin:
        lines.append(("file", entry.origin))
    stale = why_stale(entry.key, entry.provenance)
    if stale:
        lines.append(("stale", stale))
    lines += copy_lines(entry, workload)
    if entry.key.is_interpreted:
        lines.append(("note", INTERPRETER_NOTE))
    return lines


def copy_lines(entry: Entry, workload: Workload | None) -> Lines:
    """The winner to paste: as Python, for the command line, as JSON."""
    found = copies(entry.key, entry.winner.config, entry.origin, workload)
    return [(f"as {name}", text) for name, text in found.items()]


def speedup_text(winner: Winner, regime: Regime, *, interpreted: bool = False) -> str:
    """Speedup over the fastest baseline: ``1.30x bsp graph``; empty without a baseline, and under the interpreter."""
    name = None if interpreted else fastest(winner.baselines, regime)
    if name is None:
        return ""
    found = ratio(winner.baselines[name], winner.latency, regime)
    return f"{found.value:.2f}x {name}" if found.is_told else NOT_TOLD_APART


def _origin(entry: Entry) -> str:
    return f", imported {entry.imported_at:%Y-%m-%d %H:%M} UTC" if entry.imported_at is not None else ""


def _fastest_first(latencies: dict[str, Latency], regime: Regime) -> list[tuple[str, Latency]]:
    return sorted(latencies.items(), key=lambda pair: pair[1].of(regime))
