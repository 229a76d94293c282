"""An entry of the cache, as lines for people and as values for programs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from autotune.db import Entry, Store, Winner
from autotune.environment import INTERPRETER
from autotune.errors import AutotuneError
from autotune.outcome import Latency
from autotune.report.figures import (
    INTERPRETER_NOTE,
    config_text,
    dashed,
    device_text,
    fastest,
    latency_text,
    microseconds,
    options_text,
    problem_text,
    ratio,
    slowest,
)

Lines = list[tuple[str, str]]


def selected(store: Store, name: str | None, given: Mapping[str, Any], device: str | None = None) -> list[Entry]:
    """The entries of a workload (None: of all) whose problems have the given fields, newest first; at least one."""
    found = [entry for entry in store.entries(name, device) if _matches(entry, given)]
    if not found:
        wanted = f"{dashed(name)} {options_text(given)}".strip() if name else "any workload"
        where = f" on {device}" if device else ""
        raise AutotuneError(f"no finished study of {wanted}{where} in {store.place}; tune list shows what there is")
    return found


def entry_dict(entry: Entry) -> dict[str, Any]:
    """The entry in full."""
    key = dataclasses.asdict(entry.key)
    return {
        **key,
        "problem": json.loads(entry.key.problem),
        **winner_dict(entry.winner),
        "provenance": dataclasses.asdict(entry.provenance),
        "study": entry.study_id,
        "trials": entry.trials,
        "finished_at": entry.finished_at.isoformat(),
        "imported_at": entry.imported_at.isoformat() if entry.imported_at is not None else None,
    }


def winner_dict(winner: Winner) -> dict[str, Any]:
    """A config with its latency, what it was compared with, and how it compares."""
    limit = slowest(winner.limits)
    return {
        "config": dict(winner.config),
        "latency": dataclasses.asdict(winner.latency),
        "baselines": {name: dataclasses.asdict(latency) for name, latency in winner.baselines.items()},
        "speedups": {
            name: dataclasses.asdict(ratio(latency, winner.latency)) for name, latency in winner.baselines.items()
        },
        "limits": {name: dataclasses.asdict(latency) for name, latency in winner.limits.items()},
        "limit_share": winner.limits[limit].median / winner.latency.median if limit is not None else None,
    }


def title(workload: str, problem: Mapping[str, Any]) -> str:
    """Workload and problem in one line."""
    return f"{dashed(workload)}  {problem_text(problem)}"


def entry_title(entry: Entry) -> str:
    """Workload and problem of an entry, as far as the entry alone tells."""
    return title(entry.key.workload, json.loads(entry.key.problem))


def winner_lines(winner: Winner, name: str = "winner") -> Lines:
    """The config, its latency, its speedups, its share of the limit."""
    lines = [(name, f"{latency_text(winner.latency)}, skew {microseconds(winner.latency.skew)}")]
    lines += [("config", config_text(winner.config))]
    for i, (baseline, latency) in enumerate(_fastest_first(winner.baselines)):
        text = f"{ratio(latency, winner.latency)} times as fast as {baseline} ({latency_text(latency)})"
        if latency == winner.latency:
            text = f"none: nothing beat {baseline} beyond the noise"
        lines.append(("" if i else "speedup", text))
    limit = slowest(winner.limits)
    if limit is not None:
        share = winner.limits[limit].median / winner.latency.median
        parts = ", ".join(f"{part} alone {microseconds(latency.median)}" for part, latency in winner.limits.items())
        lines.append(("limit", f"{share:.2f} of the limit: {parts}"))
    return lines


def entry_lines(entry: Entry) -> Lines:
    """The entry in full."""
    provenance = ", ".join(f"{name} {value or 'none'}" for name, value in dataclasses.asdict(entry.provenance).items())
    lines = [("device", device_text(entry.key)), *winner_lines(entry.winner)]
    lines += [
        ("trials", f"{entry.trials}, finals among them"),
        ("tuned", f"{entry.finished_at:%Y-%m-%d %H:%M} UTC, study {entry.study_id}{_origin(entry)}"),
        ("with", provenance),
    ]
    if entry.key.device == INTERPRETER:
        lines.append(("note", INTERPRETER_NOTE))
    return lines


def speedup_text(winner: Winner) -> str:
    """Against the fastest baseline: ``1.30x bsp graph``; empty where there is none."""
    name = fastest(winner.baselines)
    return f"{ratio(winner.baselines[name], winner.latency).value:.2f}x {name}" if name is not None else ""


def _origin(entry: Entry) -> str:
    return f", imported {entry.imported_at:%Y-%m-%d %H:%M} UTC" if entry.imported_at is not None else ""


def _matches(entry: Entry, given: Mapping[str, Any]) -> bool:
    problem = json.loads(entry.key.problem)
    return all(problem.get(name) == value for name, value in given.items())


def _fastest_first(latencies: dict[str, Latency]) -> list[tuple[str, Latency]]:
    return sorted(latencies.items(), key=lambda pair: pair[1].median)
