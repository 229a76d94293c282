"""A result as named lines, for a terminal."""

from __future__ import annotations

import dataclasses

from autotune.config import Config
from autotune.db import CacheKey
from autotune.outcome import DEFAULT_REGIME, Regime
from autotune.results.figures import (
    BEYOND_LIMIT,
    BEYOND_ROOFLINE,
    INTERPRETER_NOTE,
    config_text,
    device_text,
    efficiency_text,
    latency_text,
    microseconds,
    plain,
    resource_text,
    share_text,
)
from autotune.results.regimes import TITLES, conclusion, overhead_text, title_of
from autotune.results.result import Result
from autotune.results.routings import inputs_named, line
from autotune.workloads.descriptors import space_of
from autotune.workloads.user_files import BUILT_IN

VERIFIED = "of the finals alone: verified between searched sizes"

Lines = list[tuple[str, str]]
"""Names with texts; an empty name continues the line above."""


def winner_lines(of: Result, name: str = "winner") -> Lines:
    """The config, in figures and in words, its latency, its speedups, the regimes, its share of the limits."""
    key, regime = of.key, of.regime
    tuned_for = "" if regime is DEFAULT_REGIME or key.is_interpreted else f", {title_of(key, regime)}"
    words = [in_words(key.workload, of.config)] if has_words(key) else []
    return [
        (name, f"{latency_text(of.latency, regime)}{tuned_for}, skew {microseconds(of.latency.skew)}"),
        *_under("config", [config_text(of.config), *words]),
        *_under("baselines" if key.is_interpreted else "speedup", _speedups(of)),
        *_under("regimes", _regimes(of)),
        *_under(inputs_named(key), [line(row, regime) for row in of.routings[1:]]
                or ["not measured under others"] * len(of.routings)),
        *_limits(of),
    ]  # fmt: skip


def entry_lines(of: Result) -> Lines:
    entry = of.entry
    assert entry is not None
    provenance = ", ".join(f"{name} {value or 'none'}" for name, value in dataclasses.asdict(entry.provenance).items())
    imported = f", imported {entry.imported_at:%Y-%m-%d %H:%M} UTC" if entry.imported_at is not None else ""
    lines = [
        ("device", device_text(of.key)),
        *winner_lines(of),
        ("trials", f"{entry.trials}, {VERIFIED if of.winner.verified else 'finals and invalid ones included'}"),
        ("tuned", f"{entry.finished_at:%Y-%m-%d %H:%M} UTC, study {entry.study_id}{imported}"),
        ("with", provenance),
    ]
    if of.key.is_kernel:
        told = f"{entry.origin or 'decorated'}; a launch gets this as long as its source and configs are unchanged"
        lines.append(("kernel", told))
    elif entry.origin:
        lines.append(("file", entry.origin))
    lines += [("stale", of.stale)] if of.stale else []
    lines += copy_lines(of)
    return [*lines, ("note", INTERPRETER_NOTE)] if of.key.is_interpreted else lines


def copy_lines(of: Result) -> Lines:
    """The winner to paste: as Python, for the command line, as JSON."""
    return [(f"as {name}", text) for name, text in of.copies.items()]


def _under(name: str, texts: list[str]) -> Lines:
    return [("" if place else name, text) for place, text in enumerate(texts)]


def _speedups(of: Result) -> list[str]:
    texts = []
    for each in of.speedups:
        taken = latency_text(each.latency, of.regime)
        if each.is_winner:
            texts.append(f"none: no config beat {each.baseline} by more than the noise")
        elif each.ratio is None:
            texts.append(f"{each.baseline} {taken}")
        else:
            texts.append(f"{each.ratio.against(each.baseline)} ({taken})")
    return texts


def _regimes(of: Result) -> list[str]:
    """Empty if only one regime was measured, as under the interpreter."""
    if all(len(known) < 2 for known in of.in_regimes.values()):
        return []
    texts = [
        f"{name}: " + ", ".join(f"{TITLES[Regime(each)]} {microseconds(value)}" for each, value in known.items())
        for name, known in of.in_regimes.items()
    ]
    return [*texts, *filter(None, [conclusion(of.verdicts), overhead_text(of.latency)])]


def _limits(of: Result) -> Lines:
    """Empty under the interpreter."""
    lines = []
    if of.limit is not None:
        parts = ", ".join(f"{part} alone {microseconds(latency.median)}" for part, latency in of.limit.parts.items())
        lines.append(("limit", f"{share_text(of.limit.share, 'limit', BEYOND_LIMIT)}: {parts}"))
        if of.limit.efficiency is not None:
            lines.append(("overlap", efficiency_text(of.limit.efficiency)))
    if of.roofline is not None and not of.key.is_interpreted:
        share = of.roofline.limit / of.latency.median
        busy = f"{resource_text(of.roofline.slowest)} busy for {microseconds(of.roofline.limit)} at this device's rates"
        lines.append(("roofline", f"{share_text(share, 'roofline', BEYOND_ROOFLINE)}: {busy}"))
    return lines


def has_words(key: CacheKey) -> bool:
    """True for a built-in workload: of others the values would only be listed once more."""
    return key.workload in BUILT_IN and not key.is_kernel


def in_words(workload: str, config: Config) -> str:
    """One sentence, by what dimensions ``say``. Kernels that are not built in have their values named."""
    values = dict(config)
    declared = space_of(workload).dimensions if workload in BUILT_IN else {}
    told = {name: declared[name].told(config) for name in declared if values.pop(name, None) is not None}
    head = told.pop("mode", "") or (f"mode {plain(values.pop('mode'))}" if "mode" in values else "")
    parts = [*told.values(), *(f"{plain(name)} {plain(value)}" for name, value in values.items())]
    text = "; ".join(filter(None, [head, ", ".join(filter(None, parts))]))
    return f"{text}." if text else "No dimensions."
