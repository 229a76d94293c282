"""Cache entries for one key: those that may be served, exactly or as the nearest, and the reasons for the others."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from operator import itemgetter

from autotune.config import Config
from autotune.db import CacheKey, Entry, Provenance, Store, TrialRecord, Unread
from autotune.db.ranges import NEIGHBOURS, Place, border, by_expected_loss, said
from autotune.db.records import HASHED, Columns, columns, entries_of, parted
from autotune.errors import NoDatabase
from autotune.forks import FORKS_WAIT, Lock
from autotune.outcome import Latency, Regime

LOCK = Lock()
"""Held over the one query of a workload, so that concurrent look-ups query once."""

NEAREST_RATIO = 2.0
"""A tuned problem may replace another one whose free dimensions are at most this many times larger or smaller."""

UNTUNED = "nothing tuned for this problem here"

Sizes = tuple[float, ...]
"""Sizes of the free dimensions, in their order."""


@dataclass(frozen=True)
class Served:
    """The entry to use, if any, and the reason why it is not exact, in one line; empty if it is."""

    entry: Entry | None
    reason: str
    beyond: Entry | None = None
    """The entry on the other side of the border, where the problem lies between two measured sizes."""
    of_other_versions: Entry | None = None
    """An entry of these kernels under other versions of Triton, torch, Iris or the driver, where none may be served."""


Measured = Sequence[tuple[Config, Latency]]
"""The fastest config of each mode, and way to launch it, that a study measured and that never failed there."""


class Entries:
    """A workload's entries on a device: by key and, on the first search for neighbours, sorted by the free sizes."""

    def __init__(self, entries: Iterable[Entry | Unread], read: Callable[[Entry], Measured] = lambda entry: ()) -> None:
        """``entries`` go from the newest to the oldest. ``read`` tells what else was measured, asked once per entry."""
        self._entries = tuple(each if isinstance(each, Unread) else Unread.of(each) for each in entries)
        self._read = read
        self._measured: dict[int, Measured] = {}
        self._places: dict[Columns, tuple[int, ...]] = {}
        """Places in ``_entries`` by key; numbers, which Python's garbage collector does not look at."""
        for place, each in enumerate(self._entries):
            self._places[each.key] = (*self._places.get(each.key, ()), place)
        self._families: dict[tuple[str, ...], dict[object, _Family]] = {}

    def __iter__(self) -> Iterator[Entry]:
        """Newest first."""
        return entries_of(self._entries)

    def of(self, key: CacheKey) -> Sequence[Entry]:
        """The entries of a key, one per provenance."""
        return list(entries_of(self._entries[place] for place in self._places.get(columns(key), ())))

    def alike(self, key: CacheKey, names: Sequence[str]) -> Iterator[Entry]:
        """The entries that differ from the key only in the dimensions ``names``."""
        besides = parted(columns(key), names)[1]
        return entries_of(each for each in self._entries if parted(each.key, names)[1] == besides)

    def measured(self, entry: Entry) -> Measured:
        """Configs that the study of one of these entries measured beside its winner; none for an imported one."""
        if entry.study_id not in self._measured:
            self._measured[entry.study_id] = self._read(entry)
        return self._measured[entry.study_id]

    def near(
        self, key: CacheKey, provenance: Provenance, free: Sequence[str], within: float = NEAREST_RATIO
    ) -> Iterator[tuple[float, Entry]]:
        """The entries of a provenance that differ from the key only in the dimensions ``free``, each by no more than a
        factor; nearest first, with their distances: sums of |log2 ratio|.
        """
        family, here = self._family(key, provenance, tuple(free))
        if family is None or here is None:
            return iter(())
        return ((distance, entry) for distance, each in family.near(here, within) for entry in entries_of([each]))

    def around(self, key: CacheKey, provenance: Provenance, name: str) -> tuple[Entry, Entry] | None:
        """The entries of the next smaller and the next larger size in one dimension, alike in all else, if there are
        both.
        """
        family, here = self._family(key, provenance, (name,))
        if family is None or here is None or not isinstance(here[0], int):
            return None
        below, above = (next(entries_of(way), None) for way in family.ways(here))
        return None if below is None or above is None else (below, above)

    def _family(
        self, key: CacheKey, provenance: Provenance, names: tuple[str, ...]
    ) -> tuple[_Family | None, Sizes | None]:
        families = self._families.get(names)
        if families is None:
            families = self._families[names] = _families(self._entries, names)
        here, besides = _parted(columns(key), names)
        return families.get((columns(provenance), besides)), here


class _Family:
    """Entries that differ only in their free sizes."""

    def __init__(self) -> None:
        self.sizes: list[Sizes] = []
        """Sizes in ascending order, without duplicates."""
        self.at: dict[Sizes, list[Unread]] = {}
        """Ordered by the text of their problems if several have the same sizes."""

    def add(self, sizes: Sizes, entry: Unread) -> None:
        if sizes not in self.at:
            self.sizes.append(sizes)
        self.at.setdefault(sizes, []).append(entry)

    def ways(self, here: Sizes) -> tuple[Iterator[Unread], Iterator[Unread]]:
        """Integers down and up along the one dimension, from the place of ``here``, which is not among them."""
        first, last = bisect_left(self.sizes, here), bisect_right(self.sizes, here)
        return self._whole(reversed(range(first))), self._whole(range(last, len(self.sizes)))

    def _whole(self, places: Iterable[int]) -> Iterator[Unread]:
        sizes = (self.sizes[place] for place in places)
        return chain.from_iterable(self.at[each] for each in sizes if isinstance(each[0], int))

    def near(self, here: Sizes, within: float) -> Iterator[tuple[float, Unread]]:
        """The entries near a size, nearest first, with their distances."""
        near = [(_distance(here, sizes), sizes) for sizes in self.sizes if _near(here, sizes, within)]
        found = [(distance, each) for distance, sizes in near for each in self.at[sizes]]
        found.sort(key=lambda pair: (pair[0], pair[1].problem))
        return ((distance, each) for (distance, _), each in found)


def read_entries(url: str, workload: str, device: str) -> Entries:
    """A workload's entries on a device: one query per process. None without a database.

    Raises StoreError if it cannot be read.
    """
    key = (url, workload, device)
    with LOCK.held, FORKS_WAIT:
        if key not in _ENTRIES:
            _ENTRIES[key] = Entries(
                _query(url, workload, device), lambda entry: read_measured(url, [entry])[entry.study_id]
            )
        return _ENTRIES[key]


def forget_entries(workload: str | None = None) -> None:
    """Query the database again at the next ``read_entries``: for one workload, or for all."""
    with LOCK.held, FORKS_WAIT:
        for key in [key for key in _ENTRIES if workload in (None, key[1])]:
            del _ENTRIES[key]


def serve(
    entries: Entries, key: CacheKey, provenance: Provenance, free: Sequence[str],
    violation: Callable[[Config], str | None],
) -> Served:  # fmt: skip
    """The exact entry, else that of the range, else the nearest; never a stale one, but where only versions differ as
    ``of_other_versions``; never one whose config ``violation`` refuses.

    Range: of the next smaller and the next larger measured size, the one on whose side of their border the problem lies
    (``db/ranges.py``), in one of the dimensions ``free``: that in which they are closest. Nearest: the same key except
    for the dimensions ``free``, each within a factor of two; of the five with the smallest sum of log ratios, smaller
    sizes first, the one whose winner is expected to lose least (``by_expected_loss``).
    """
    reason, other = UNTUNED, None
    for entry in sorted(entries.of(key), key=lambda entry: entry.provenance != provenance)[:1]:
        stale = entry.provenance.changes(provenance)
        refused = violation(entry.winner.config)
        if not stale and refused is None:
            return Served(entry, "")
        reason = f"the tuned entry is stale: {stale}" if stale else f"the tuned config is not valid here: {refused}"
        if refused is None and not entry.provenance.differences(provenance).keys() & HASHED.keys():
            other = entry
    for entry, beyond, told in _of_ranges(entries, key, provenance, free):
        if violation(entry.winner.config) is None:
            return Served(entry, told if reason is UNTUNED else f"{reason}; {told}", beyond)
    near = (pair for pair in entries.near(key, provenance, free) if violation(pair[1].winner.config) is None)
    around = list(islice(near, NEIGHBOURS))
    if not around:
        return Served(None, reason, of_other_versions=other)
    best, (_, nearest) = by_expected_loss(around)[0], around[0]
    told = "nearest is" if best is nearest else f"the nearest, {said(nearest, free)}, loses more there than"
    return Served(best, f"{reason}; {told} {said(best, free)}")


def _of_ranges(
    entries: Entries, key: CacheKey, provenance: Provenance, free: Sequence[str]
) -> Iterator[tuple[Entry, Entry, str]]:
    """The entries on both sides of the key, each with the other and their range in words: the narrowest gap first, in
    it the one that serves.
    """
    gaps: list[tuple[float, tuple[Entry, Entry], str]] = []
    for name in free:
        around = entries.around(key, provenance, name)
        if around is None:
            continue
        below, above = (Place.of(entry, name) for entry in around)
        last = border(below, above)
        if last is not None:
            first, second = (said(entry, [name]) for entry in around)
            ordered = around if key.fields[name] <= last else around[::-1]
            gaps.append((above.size / below.size, ordered, f"between {first} and {second}"))
    for _, (near, far), told in sorted(gaps, key=itemgetter(0)):
        yield near, far, told
        yield far, near, told


_ENTRIES: dict[tuple[str, str, str], Entries] = {}


def _query(url: str, workload: str, device: str) -> list[Unread]:
    try:
        with Store.open(url, create=False) as store:
            return store.unread(workload, device)
    except NoDatabase:
        return []


def read_measured(url: str, entries: Iterable[Entry]) -> dict[int, Measured]:
    """By study: what was measured beside the winners."""
    with Store.open(url, create=False) as store:
        return {
            each.study_id: fastest_of_modes(store.trials(each.study_id), Regime(each.key.regime)) for each in entries
        }


def fastest_of_modes(history: Iterable[TrialRecord], regime: Regime) -> Measured:
    """Rank configs by their first measurement, from the search, which has seen every mode: finals may have run at
    another clock. Configs that failed once do not count, except baselines, which run first on a cold machine.
    """
    records = list(history)
    failed = {each.config for each in records if each.evaluation.latency is None and each.source != "baseline"}
    first: dict[Config, Latency] = {}
    for each in records:
        if each.evaluation.latency is not None and each.config not in failed:
            first.setdefault(each.config, each.evaluation.latency)
    fastest: dict[object, Config] = {}
    for config in sorted(first, key=lambda config: first[config].of(regime)):
        fastest.setdefault((config.get("mode"), config.get("launch")), config)
    return [(config, first[config]) for config in fastest.values()]


def _families(entries: Iterable[Unread], free: tuple[str, ...]) -> dict[object, _Family]:
    """Families by provenance and the key without the free dimensions."""
    sized = []
    for each in entries:
        sizes, besides = _parted(each.key, free)
        if sizes is not None:
            sized.append((sizes, each.problem, (each.provenance, besides), each))
    found: dict[object, _Family] = {}
    for sizes, _, family, each in sorted(sized, key=itemgetter(0, 1)):
        found.setdefault(family, _Family()).add(sizes, each)
    return found


def _parted(key: Columns, free: Sequence[str]) -> tuple[Sizes | None, object]:
    """The free dimensions' sizes, None if one of them is not a size, and what else the key holds."""
    values, besides = parted(key, free)
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return (values if numbers and all(0 < value < 2**63 for value in values) else None), besides


def _near(here: Sizes, there: Sizes, within: float) -> bool:
    return all(1 / within <= ratio <= within for ratio in _ratios(here, there))


def _distance(here: Sizes, there: Sizes) -> tuple[float, float]:
    """Sum of |log2 ratio| over the free dimensions, and their product for ties: the smaller sizes first."""
    ratios = _ratios(here, there)
    return sum(abs(math.log2(ratio)) for ratio in ratios), math.prod(ratios)


def _ratios(here: Sizes, there: Sizes) -> list[float]:
    return [other / own for own, other in zip(here, there, strict=True)]
