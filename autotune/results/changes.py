"""The changes between two collections of results: faster or slower beyond the noise, new, missing."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from autotune.config import Config
from autotune.db import Entry, Store, TrialRecord
from autotune.errors import InputError
from autotune.outcome import Latency, Regime, alike
from autotune.results.figures import Ratio, ratio, relative_error
from autotune.results.result import Result
from autotune.text import counted


class Verdict(StrEnum):
    SLOWER = "slower"
    FASTER = "faster"
    SAME = "the same"


@dataclass(frozen=True)
class Side:
    """One collection: where it is, and its entries, the newest first."""

    place: str
    entries: tuple[Entry, ...]
    store: Store | None = None
    """Has the entries' evaluations; None if the collection is a file."""

    @property
    def machines(self) -> set[tuple[str, ...]]:
        return {_machine(entry) for entry in self.entries}

    @property
    def problems(self) -> int:
        """Fewer than entries where some were tuned again; on two machines a problem counts twice."""
        return len(_newest(self.entries, across=False))


@dataclass(frozen=True)
class Change:
    """A problem that both sides have. Bound calls where one side lacks host overhead."""

    then: Entry
    now: Entry
    ratio: Ratio
    """B's latency over A's in their regime: above 1 is slower."""
    verdict: Verdict
    beside: Ratio | None
    """B's winner over A's config, where B measured both in turns; tells a worse config from a slower machine."""
    without_overhead: bool = False
    """True if a side's own result says more, since it has host overhead."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "a": Result.of(self.then).to_dict(),
            "b": Result.of(self.now).to_dict(),
            "ratio": None if self.now.key.is_interpreted else dataclasses.asdict(self.ratio),
            "verdict": self.verdict.value,
            "without_overhead": self.without_overhead,
            "beside": dataclasses.asdict(self.beside) if self.beside is not None else None,
            "provenance_differences": self.then.provenance.differences(self.now.provenance),
        }


@dataclass(frozen=True)
class Changes:
    a: Side
    b: Side
    threshold: float
    """Smaller changes count as none: a run's ± does not cover what differs from one run to the next, mostly clocks."""
    changes: tuple[Change, ...]
    new: tuple[Entry, ...]
    missing: tuple[Entry, ...]

    @property
    def counts(self) -> Counter[Verdict]:
        return Counter(change.verdict for change in self.changes)

    @property
    def counted(self) -> dict[str, int]:
        """Counts by verdict, and of problems that a side lacks."""
        counts: dict[str, int] = {verdict.value: self.counts[verdict] for verdict in Verdict}
        return {**counts, "new": len(self.new), "missing": len(self.missing)}

    def to_dict(self) -> dict[str, Any]:
        return {
            **{
                name: {"place": side.place, "problems": side.problems, "results": len(side.entries)}
                for name, side in (("a", self.a), ("b", self.b))
            },
            "threshold": self.threshold,
            "counts": self.counted,
            "changes": [change.to_dict() for change in self.changes],
            "new": [Result.of(entry).to_dict() for entry in self.new],
            "missing": [Result.of(entry).to_dict() for entry in self.missing],
        }


def compare(a: Side, b: Side, threshold: float) -> Changes:
    """Compare the newest results of each problem. Two sides of one machine each are compared across machines.

    Raises InputError if no problem is on both sides.
    """
    across = len(a.machines) == len(b.machines) == 1 and a.machines != b.machines
    ours, theirs = _newest(a.entries, across), _newest(b.entries, across)
    common = [key for key in theirs if key in ours]
    if not common:
        raise InputError(
            f"no problem is on both sides: {a.place} has {_told(a)}, {b.place} has {_told(b)}; machines, world sizes "
            "and regimes must agree too, unless each side is of one machine"
        )
    changes = [_change(ours[key], theirs[key], b.store, threshold) for key in common]
    new = [entry for key, entry in theirs.items() if key not in ours]
    missing = [entry for key, entry in ours.items() if key not in theirs]
    return Changes(a, b, threshold, tuple(changes), tuple(new), tuple(missing))


def chosen(entries: Iterable[Entry], conditions: Sequence[tuple[str, str]]) -> tuple[Entry, ...]:
    """The entries that meet every ``(name, value)``; see NAMES. Raises InputError for an unknown name or date.

    The newest first, by the time of tuning, not of an import: so a file and the database that imported it agree.
    """
    tests = [_test(name.replace("-", "_"), value) for name, value in conditions]
    found = (entry for entry in entries if all(test(entry) for test in tests))
    return tuple(sorted(found, key=lambda entry: entry.finished_at, reverse=True))


OF_THE_KEY = ("workload", "device", "arch", "interconnect", "world_size", "regime")
OF_THE_PROVENANCE = ("source_hash", "space", "triton", "iris", "torch", "driver")
DATES = ("since", "until")
NAMES = (*DATES, *OF_THE_KEY, *OF_THE_PROVENANCE)
"""Properties to choose entries by; dates are those of finishing."""


def _test(name: str, value: str) -> Callable[[Entry], bool]:
    if name in DATES:
        moment = _moment(name, value)
        if name == "since":
            return lambda entry: entry.finished_at.replace(tzinfo=None) >= moment
        return lambda entry: entry.finished_at.replace(tzinfo=None) <= moment
    if name in OF_THE_KEY:
        wanted = value.replace("-", "_") if name == "workload" else value
        return lambda entry: str(getattr(entry.key, name)) == wanted
    if name in OF_THE_PROVENANCE:
        return lambda entry: bool(getattr(entry.provenance, name) == value)
    raise InputError(f"{name}={value}: allowed: {', '.join(NAMES)}")


def _moment(name: str, value: str) -> datetime:
    """A date, or a date and a time, in UTC; until a date is until its end."""
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise InputError(f"{name}={value}: write a date like 2026-11-20, or 2026-11-20T18:30, in UTC") from None
    if name == "until" and len(value) <= len("2026-11-20"):
        return moment.replace(hour=23, minute=59, second=59, microsecond=999_999)
    return (moment.astimezone(UTC) if moment.tzinfo else moment).replace(tzinfo=None)


def _machine(entry: Entry) -> tuple[str, ...]:
    return entry.key.device, entry.key.arch, entry.key.interconnect


def _newest(entries: Iterable[Entry], across: bool) -> dict[tuple[Any, ...], Entry]:
    found: dict[tuple[Any, ...], Entry] = {}
    for entry in entries:
        key = entry.key
        identity = (key.workload, key.problem, key.world_size, key.regime, () if across else _machine(entry))
        found.setdefault(identity, entry)
    return found


def _told(side: Side) -> str:
    machines = ", ".join(sorted({entry.key.device for entry in side.entries}))
    return counted(len(side.entries), "result") + (f" of {machines}" if machines else "")


def _change(then: Entry, now: Entry, store: Store | None, threshold: float) -> Change:
    regime = Regime(now.key.regime)
    latencies = alike(then.winner.latency, now.winner.latency)
    claimed = [each.winner.latency.of(regime) for each in (then, now)]
    without_overhead = claimed != [each.of(regime) for each in latencies]
    then, now = (_with(*each) for each in zip((then, now), latencies, strict=True))
    found = quotient(now.winner.latency, then.winner.latency, regime)
    verdict = Verdict.SAME
    if found.value - found.error > 1 and found.value >= 1 + threshold:
        verdict = Verdict.SLOWER
    elif found.value + found.error < 1 and found.value <= 1 / (1 + threshold):
        verdict = Verdict.FASTER
    beside = None
    if store is not None and verdict is not Verdict.SAME and then.winner.config != now.winner.config:
        beside = _beside(then.winner.config, now, store.trials(now.study_id), regime)
    return Change(then, now, found, verdict, beside, without_overhead)


def _with(entry: Entry, latency: Latency) -> Entry:
    return dataclasses.replace(entry, winner=dataclasses.replace(entry.winner, latency=latency))


def quotient(numerator: Latency, denominator: Latency, regime: Regime) -> Ratio:
    """A quotient of latencies of two runs, whose rounds do not go together: its error comes from both ±."""
    value = numerator.of(regime) / denominator.of(regime)
    error = math.hypot(relative_error(numerator, regime), relative_error(denominator, regime))
    rounds = min(len(latency.in_rounds(regime)) for latency in (numerator, denominator))
    return Ratio(value, value * error, rounds if rounds > 1 else 0)


def _beside(config: Config, now: Entry, trials: Sequence[TrialRecord], regime: Regime) -> Ratio | None:
    """The winner over another config of the same finals, round by round."""
    from autotune.tuning.finals import in_finals

    final = in_finals(trials)
    ours, theirs = final.get(now.winner.config), final.get(config)
    if ours is None or theirs is None or min(len(ours.rounds), len(theirs.rounds)) < 2:
        return None
    return ratio(ours, theirs, regime)
