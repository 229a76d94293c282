"""Entries of the cache for one key: which of them may be served, exactly or as the nearest, and why others may not."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotune.config import Config
from autotune.db import CacheKey, Entry, Provenance, Store
from autotune.errors import NoDatabase

NEAREST_RATIO = 2.0
"""A tuned problem stands in for another one whose free dimensions are at most this many times larger or smaller."""


@dataclass(frozen=True)
class Served:
    """The entry to use, if there is one, and why it is not exact, in one line; empty where it is."""

    entry: Entry | None
    reason: str


def read_entries(url: str, workload: str, device: str) -> list[Entry]:
    """A workload's entries on a device, newest first: one query per process. None where there is no database.

    Raises StoreError where it cannot be read.
    """
    key = (url, workload, device)
    with _LOCK:
        if key not in _ENTRIES:
            _ENTRIES[key] = _query(url, workload, device)
        return _ENTRIES[key]


def forget_entries(workload: str | None = None) -> None:
    """Ask the database again at the next ``read_entries``: of one workload, or of all."""
    with _LOCK:
        for key in [key for key in _ENTRIES if workload in (None, key[1])]:
            del _ENTRIES[key]


def serve(
    entries: Sequence[Entry], key: CacheKey, provenance: Provenance, free: Sequence[str],
    violation: Callable[[Config], str | None],
) -> Served:  # fmt: skip
    """The exact entry, else the nearest; never a stale one, never one whose config ``violation`` refuses.

    Nearest: the same key but for the problem's dimensions ``free``, each within a factor of two; the smallest sum of
    their log ratios, smaller sizes first.
    """
    reason = "nothing tuned for this problem here"
    exact = [entry for entry in entries if entry.key == key]
    for entry in sorted(exact, key=lambda entry: entry.provenance != provenance):
        stale = entry.provenance.differences(provenance)
        refused = violation(entry.winner.config)
        if not stale and refused is None:
            return Served(entry, "")
        changes = ", ".join(f"{name} {then} is now {now}" for name, (then, now) in stale.items())
        reason = f"the tuned entry is stale: {changes}" if stale else f"the tuned config is not valid here: {refused}"
        break
    fresh = [entry for entry in entries if entry.provenance == provenance]
    near = [(distance, entry) for entry in fresh if (distance := _distance(key, entry.key, free)) is not None]
    for _, entry in sorted(near, key=lambda pair: (pair[0], pair[1].key.problem)):
        if violation(entry.winner.config) is None:
            return Served(entry, reason)
    return Served(None, reason)


_LOCK = threading.Lock()
_ENTRIES: dict[tuple[str, str, str], list[Entry]] = {}


def _query(url: str, workload: str, device: str) -> list[Entry]:
    try:
        with Store.open(url, create=False) as store:
            return store.entries(workload, device)
    except NoDatabase:
        return []


def _distance(wanted: CacheKey, other: CacheKey, free: Sequence[str]) -> tuple[float, float] | None:
    """Sum of |log2 ratio| over the free dimensions, their product for ties; None where the entry cannot stand in."""
    if set(wanted.differences(other)) - set(free):
        return None
    here, there = json.loads(wanted.problem), json.loads(other.problem)
    if any(not _is_size(values.get(name)) for name in free for values in (here, there)):
        return None
    ratios = [there[name] / here[name] for name in free]
    if any(not 1 / NEAREST_RATIO <= ratio <= NEAREST_RATIO for ratio in ratios):
        return None
    return sum(abs(math.log2(ratio)) for ratio in ratios), math.prod(ratios)


def _is_size(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
