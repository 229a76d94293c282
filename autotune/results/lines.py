"""A result as a sentence, bars and named lines, for a terminal."""

from __future__ import annotations

from dataclasses import asdict
from typing import NamedTuple

from autotune.config import Config
from autotune.outcome import Latency, Regime
from autotune.results.figures import (
    NOT_TOLD_APART,
    config_text,
    device_text,
    instead_text,
    latency_text,
    microseconds,
    plain,
    resource_text,
)
from autotune.results.library import GRAPH
from autotune.results.regimes import CAPTURE, TITLES, is_captured
from autotune.results.result import Result
from autotune.results.routings import inputs_named, line
from autotune.workloads.descriptors import space_of
from autotune.workloads.user_files import BUILT_IN

VERIFIED = "of the finals alone: verified between searched sizes"

Lines = list[tuple[str, str]]
"""Names with texts; an empty name continues the line above."""


class Bar(NamedTuple):
    name: str
    microseconds: float
    text: str


def sentence(of: Result) -> str:
    """``1.43 ± 0.05 times as fast as NCCL + cuBLAS: 19.58 µs instead of 28.03``."""
    taken, first = microseconds(of.microseconds), of.speedup
    if of.key.is_interpreted:
        return f"{taken} under Triton's interpreter, which says nothing about GPUs"
    if of.unbeaten:
        return f"{of.unbeaten} stays, {taken}: no config beat it by more than the noise"
    if first is None or first.ratio is None:
        return latency_text(of.latency, of.regime)
    times = instead_text(of.microseconds, first.latency.of(of.regime))
    return f"{first.ratio.against(of.way(first.baseline))}: {times}"


def bars(of: Result) -> list[Bar]:
    """The winner, the baselines and perfect overlap; empty without any to compare it with."""
    others = [each for each in of.speedups if not each.is_winner]
    if of.key.is_interpreted or not (others or of.limit):
        return []
    won = of.unbeaten or plain(of.mode)
    found, before = [_bar(f"winner: {won}" if won else "winner", of.latency, of.regime)], ""
    for each in sorted(others, key=lambda each: (each.baseline.rpartition(" ")[0], each.baseline)):
        way = of.way(each.baseline)
        found.append(_bar(f"the same{GRAPH}" if way == before + GRAPH else way, each.latency, of.regime))
        before = way
    if of.limit is not None:
        alone = of.limit.parts[of.limit.slowest].median
        found.append(Bar("perfect overlap", alone, f"{microseconds(alone)}, {of.limit.slowest} alone"))
    return found


def facts(of: Result) -> Lines:
    """The config in words and to paste, other inputs, the share of the limits, the other regimes."""
    key, losing = of.key, [each for each in of.verdicts if each.ratio.is_less and each.regime is not Regime.GRAPH]
    lines = [
        ("config", in_words(key.workload, of.config) if key.workload in BUILT_IN else ""),
        ("paste", of.copies["Python"] if key.is_kernel else config_text(of.config)),
        ("overlap", "; ".join(_limits(of))),
        ("regimes", _regimes(of)),
        ("note", CAPTURE.strip() if any(is_captured(each.baseline) for each in losing) else ""),
    ]
    told = [line(row, of.regime, of.way) for row in of.routings[1:]] or ["not measured under others"] * len(of.routings)
    names = [inputs_named(key), *[""] * len(told)]
    return [*((name, text) for name, text in lines if text), *zip(names, told, strict=False)]


def entry_facts(of: Result) -> Lines:
    """What is stored beside the winner, too."""
    entry = of.entry
    assert entry is not None
    provenance = ", ".join(f"{name} {value or 'none'}" for name, value in asdict(entry.provenance).items())
    imported = f", imported {entry.imported_at:%Y-%m-%d %H:%M} UTC" if entry.imported_at is not None else ""
    lines = [
        *facts(of),
        ("device", device_text(of.key)),
        ("trials", f"{entry.trials}, {VERIFIED if of.winner.verified else 'finals and invalid ones included'}"),
        ("tuned", f"{entry.finished_at:%Y-%m-%d %H:%M} UTC, study {entry.study_id}{imported}"),
        ("with", provenance),
    ]
    if of.key.is_kernel:
        told = f"{entry.origin or 'decorated'}; a launch gets this as long as its source and configs are unchanged"
        lines.append(("kernel", told))
    elif entry.origin:
        lines.append(("file", entry.origin))
    return [*lines, *([("stale", of.stale)] if of.stale else [])]


def _bar(name: str, latency: Latency, regime: Regime) -> Bar:
    return Bar(name, latency.of(regime), latency_text(latency, regime))


def _limits(of: Result) -> list[str]:
    """The winner's shares of perfect overlap and of the roofline; empty under the interpreter."""
    told = []
    if of.limit is not None:
        told.append(of.limit.text)
        if (hidden := of.limit.efficiency) is not None:
            told.append(f"{100 * max(0.0, hidden):.0f} % of the exposed communication hidden")
    if of.roofline is not None and not of.key.is_interpreted:
        share = of.roofline.limit / of.latency.median
        told.append(f"{100 * share:.0f} % of the roofline ({resource_text(of.roofline.slowest)})")
    return told


def _regimes(of: Result) -> str:
    """``times as fast: 1.31 ± 0.02 in a graph, not told apart isolated``: the regimes that it was not tuned for."""
    found = {each.regime: each.ratio.figures if each.ratio.is_told else NOT_TOLD_APART for each in of.verdicts}
    if found.pop(of.regime, None) is None or not found:
        return ""
    return "times as fast: " + ", ".join(f"{ratio} {TITLES[regime]}" for regime, ratio in found.items())


def in_words(workload: str, config: Config) -> str:
    """One sentence, by what dimensions ``say``. Kernels that are not built in have their values named."""
    values = dict(config)
    declared = space_of(workload).dimensions if workload in BUILT_IN else {}
    told = {name: declared[name].told(config) for name in declared if values.pop(name, None) is not None}
    head = told.pop("mode", "") or (f"mode {plain(values.pop('mode'))}" if "mode" in values else "")
    parts = [*told.values(), *(f"{plain(name)} {plain(value)}" for name, value in values.items())]
    text = "; ".join(filter(None, [head, ", ".join(filter(None, parts))]))
    return f"{text}." if text else "No dimensions."
