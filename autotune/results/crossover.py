"""Crossovers: over the sizes of otherwise equal problems, which mode wins, by how much, and from where to where."""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from autotune.db import CacheKey
from autotune.db.ranges import Place, border
from autotune.outcome import Latency
from autotune.results.figures import Ratio, ratio
from autotune.results.order import problem_type
from autotune.results.result import Result
from autotune.results.study import Study, mode_of
from autotune.text import counted, json_text

FORMAT: Final = "iris-autotune/thresholds"
VERSION: Final = 1

NEAR = 2
"""Up to this factor a look-up takes a neighbour's config; beyond it nothing is claimed."""


@dataclass(frozen=True)
class Point:
    """A study among those that differ from it in one size."""

    size: int
    mode: str
    result: Result
    next_mode: str
    """The second best; empty where no other was measured."""
    margin: Ratio | None
    """The latency of that mode's best over the winner's, both from the search."""

    @property
    def place(self) -> Place:
        return Place(self.size, self.result.winner, self.result.regime)

    @property
    def tied(self) -> bool:
        """True where the next mode is within the noise."""
        return self.margin is not None and self.margin.value - self.margin.error <= 1


def families(
    studies: Iterable[Study], least: int = 2, sizes_by: Callable[[CacheKey], Collection[str]] = lambda key: ()
) -> list[tuple[str, list[tuple[int, Study]]]]:
    """Finished studies that differ in one size alone, with its name, by rising size; of equal ones the first.

    Those with ``least`` sizes at least. It is one of ``sizes_by``, where the problem has any of these.
    """
    groups: dict[tuple[Any, ...], list[Study]] = defaultdict(list)
    for study in studies:
        if study.result is not None:
            key, sizes = study.key, sizes_of(study.problem)
            words = {name: value for name, value in study.problem.items() if name not in sizes}
            machine = (key.world_size, key.device, key.arch, key.interconnect)
            groups[key.workload, machine, key.regime, json.dumps(words, sort_keys=True)].append(study)
    found = []
    for group in groups.values():
        values = {name: {study.problem[name] for study in group} for name in sizes_of(group[0].problem)}
        chosen = [each for each in sizes_by(group[0].record.key) if each in values] or list(values)
        name = max(chosen, key=lambda each: len(values[each]), default="")
        by_rest: dict[str, dict[int, Study]] = defaultdict(dict)
        for study in group:
            sizes = sizes_of(study.problem)
            if name in sizes:
                size = sizes.pop(name)
                by_rest[json.dumps(sizes, sort_keys=True)].setdefault(size, study)
        found += [(name, sorted(each.items())) for each in by_rest.values() if len(each) >= least]
    return found


def point(study: Study, size: int) -> Point:
    """The winner's mode, and the best of the others in the search."""
    report = study.result
    assert report is not None
    own = mode_of(report.config)
    best: dict[str, Latency] = {}
    for config in sorted(study.measured, key=study.microseconds):
        best.setdefault(mode_of(config), study.measured[config])
    ours = best.pop(own, None)
    if ours is None or not best:
        return Point(size, own, report, "", None)
    name, other = next(iter(best.items()))
    return Point(size, own, report, name, ratio(other, ours, study.regime))


def free_sizes(key: CacheKey) -> tuple[str, ...]:
    """The sizes in which a look-up takes a neighbour's config; none where the workload is not known here."""
    kind = problem_type(key)
    return () if kind is None else kind.free


def sizes_of(problem: Mapping[str, object]) -> dict[str, int]:
    """The integers of a problem, without the world size."""
    return {
        name: value
        for name, value in problem.items()
        if isinstance(value, int) and not isinstance(value, bool) and name != "world_size"
    }


RANGE, NEAREST = "range", "nearest"
"""Sources of a look-up's answer: between measured sizes or at one, and beyond them."""


@dataclass(frozen=True)
class Range:
    """Sizes for which a look-up finds winners of one mode, the first and the last included."""

    first: int
    last: int
    mode: str
    source: str
    points: tuple[Point, ...]
    """The measurements behind it: those in it, or the nearest one."""

    @property
    def speedups(self) -> list[float]:
        """Over the fastest baseline, at the points that have one, rising."""
        return sorted(each.result.ratio.value for each in self.points if each.result.ratio is not None)


def ranges(points: Sequence[Point]) -> list[Range]:
    """Ranges by rising size, with the look-up's borders between two points (``db/ranges.py``). A config that would do
    much more work than it was measured to do is replaced at run time; none is served where they leave a gap.
    """
    found: list[Range] = []
    borders = [border(below.place, above.place) for below, above in itertools.pairwise(points)]
    for each, before, after in zip(points, [None, *borders], [*borders, None], strict=True):
        first = each.size if before is None else before + 1
        last = each.size if after is None else after
        if before is None and (half := -(-each.size // NEAR)) < each.size:
            found.append(Range(half, each.size - 1, each.mode, NEAREST, (each,)))
        joins = before is not None and found[-1].mode == each.mode
        found.append(Range(first, last, each.mode, RANGE, (each,)))
        if joins:
            earlier, later = found[-2:]
            found[-2:] = [Range(earlier.first, last, each.mode, RANGE, earlier.points + later.points)]
        if after is None:
            found.append(Range(each.size + 1, each.size * NEAR, each.mode, NEAREST, (each,)))
    return found


def claim(where: str, searched: Sequence[float], verified: Sequence[float], library: str = "the library") -> str:
    """``m=1 to 8192: 1.08 to 1.31 times as fast as NCCL + cuBLAS at 8 searched sizes, never below 1.00 at 37 verified
    sizes``, of speedups at both kinds of sizes; empty without any.
    """
    told = []
    if searched:
        ends = dict.fromkeys(f"{each:.2f}" for each in (min(searched), max(searched)))
        told.append(f"{' to '.join(ends)} times as fast as {library} at {counted(len(searched), 'searched size')}")
    if verified:
        least = math.floor(100 * min(verified)) / 100  # what is below 1 does not read 1.00
        told.append(f"never below {least:.2f} at {counted(len(verified), 'verified size')}")
    return f"{where}: {', '.join(told)}" if told else ""


def thresholds(studies: Iterable[Study]) -> str:
    """All crossovers as JSON, for programs that choose a mode by a size and know nothing of us."""
    maps = []
    for name, members in families(studies, least=1, sizes_by=free_sizes):
        first = members[0][1]
        key, points = first.key, [point(study, size) for size, study in members]
        maps.append({
            "workload": key.workload,
            "device": key.device,
            "interconnect": key.interconnect,
            "world_size": key.world_size,
            "regime": key.regime,
            "problem": {field: value for field, value in first.problem.items() if field != name},
            "by": name,
            "ranges": [_served(each) for each in ranges(points)],
            "measured": [_measured(each) for each in points],
        })  # fmt: skip
    order = sorted(maps, key=lambda each: json.dumps(each, sort_keys=True))
    return json_text({"format": FORMAT, "version": VERSION, "maps": order}) + "\n"


def _served(of: Range) -> dict[str, Any]:
    return {
        "from": of.first,
        "to": of.last,
        "mode": of.mode,
        "source": of.source,
        "measured_at": [each.size for each in of.points],
        "worst_speedup": min(of.speedups, default=None),
    }


def _measured(of: Point) -> dict[str, Any]:
    return {
        "size": of.size,
        "mode": of.mode,
        "microseconds": of.result.latency.of(of.result.regime),
        "speedup": of.result.ratio and of.result.ratio.value,
        "verified": of.result.winner.verified,
        "next_mode": of.next_mode or None,
        "next_takes": of.margin.value if of.margin is not None else None,
        "tie": of.tied,
    }
