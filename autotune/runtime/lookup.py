"""The lookup: which config to use for a problem here, and where it came from. It never tunes."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import dataclass
from typing import Literal

from autotune.config import Config
from autotune.db import CacheKey, Entry, Store
from autotune.environment import Machine, default_database_url
from autotune.environment import machine as this_machine
from autotune.errors import InvalidProblem, NoDatabase
from autotune.problem import Problem
from autotune.workloads import Workload, provenance_of, workload

NEAREST_RATIO = 2.0
"""A tuned problem stands in for another one whose free dimensions are at most this many times larger or smaller."""

Source = Literal["exact", "nearest", "default", "given"]


@dataclass(frozen=True)
class Found:
    """What a lookup found. ``entry`` is the cache entry behind it, None for the default."""

    config: Config
    source: Source
    entry: Entry | None
    reason: str
    """Why it is not exact, in one line; empty where it is."""


def lookup(name: str, problem: Problem, *, machine: Machine | None = None, url: str | None = None) -> Found:
    """The config for a problem: tuned exactly, else the nearest tuned one, else the default.

    The database is read once per workload and process, then never again: ``forget_lookups`` starts afresh. Exact means
    the same problem, world size, device and interconnect, and the same sources, space and versions; an entry of other
    versions is stale and not served. Nearest means the same but for the problem's free dimensions (``free``), each
    within a factor of two, the smallest sum of their log ratios, smaller sizes first; its config is checked against the
    space for the actual problem. No database is no error; an unreadable one raises StoreError.
    """
    found = workload(name)
    if not isinstance(problem, found.problem_type):
        raise InvalidProblem(f"{found.name} takes a {found.problem_type.__name__}, not a {type(problem).__name__}")
    return _TABLES.find(found, problem, machine or this_machine(), url or default_database_url())


def forget_lookups() -> None:
    """Read the database again at the next lookup."""
    _TABLES.clear()


class _Tables:
    """Entries read from databases, and answers already given. Threads may look up at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[tuple[str, str, str], list[Entry]] = {}
        self._answers: dict[tuple[str, Machine, Problem], Found] = {}

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._answers.clear()

    def find(self, found: Workload, problem: Problem, machine: Machine, url: str) -> Found:
        answer = self._answers.get((url, machine, problem))
        if answer is None:
            with self._lock:
                answer = _choose(found, problem, machine, self._read(url, found.name, machine.device))
                self._answers[url, machine, problem] = answer
        return answer

    def _read(self, url: str, name: str, device: str) -> list[Entry]:
        key = (url, name, device)
        if key not in self._entries:
            self._entries[key] = _entries(url, name, device)
        return self._entries[key]


_TABLES = _Tables()


def _entries(url: str, name: str, device: str) -> list[Entry]:
    try:
        with Store.open(url, create=False) as store:
            return store.entries(name, device)
    except NoDatabase:
        return []


def _choose(found: Workload, problem: Problem, machine: Machine, entries: list[Entry]) -> Found:
    key, provenance = CacheKey.of(problem, machine), provenance_of(found)
    fresh = [entry for entry in entries if entry.provenance == provenance]
    reason = "nothing tuned for this problem here"
    exact = [entry for entry in entries if entry.key == key]
    for entry in sorted(exact, key=lambda entry: entry.provenance != provenance):
        stale = entry.provenance.differences(provenance)
        violation = found.space.violation(entry.winner.config, problem, machine)
        if not stale and violation is None:
            return Found(entry.winner.config, "exact", entry, "")
        changes = ", ".join(f"{name} {then} is now {now}" for name, (then, now) in stale.items())
        reason = f"the tuned entry is stale: {changes}" if stale else f"the tuned config is not valid here: {violation}"
        break
    near = [(distance, entry) for entry in fresh if (distance := _distance(key, entry.key, problem)) is not None]
    for _, entry in sorted(near, key=lambda pair: (pair[0], pair[1].key.problem)):
        if found.space.violation(entry.winner.config, problem, machine) is None:
            return Found(entry.winner.config, "nearest", entry, reason)
    return Found(found.default_config(problem, machine), "default", None, reason)


def _distance(wanted: CacheKey, other: CacheKey, problem: Problem) -> tuple[float, float] | None:
    """Sum of |log2 ratio| over the free dimensions, their product for ties; None where the entry cannot stand in."""
    if set(wanted.differences(other)) - set(problem.free):
        return None
    values = json.loads(other.problem)
    ratios = [values[name] / getattr(problem, name) for name in problem.free]
    if any(not 1 / NEAREST_RATIO <= ratio <= NEAREST_RATIO for ratio in ratios):
        return None
    return sum(abs(math.log2(ratio)) for ratio in ratios), math.prod(ratios)
