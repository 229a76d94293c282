"""Problems that differ in one size: the few to search, those to verify between them, those that look-ups serve."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from autotune.problem import Problem
from autotune.sizes import few

Span = dict[int, Problem]
"""Problems by the one size in which they differ, rising."""


def spans(problems: Iterable[Problem]) -> list[Span]:
    """The problems, each in one span: along the dimension of which those alike in all but ranges have most sizes."""
    alike: dict[object, list[Problem]] = defaultdict(list)
    for problem in problems:
        alike[unsized(problem)].append(problem)
    found: dict[object, Span] = defaultdict(dict)
    for group in alike.values():
        sizes = {name: {getattr(each, name) for each in group} for name in group[0].free}
        along = max(sizes, key=lambda name: len(sizes[name]), default="")
        for problem in group:
            found[_without(problem, [along])][getattr(problem, along, 1)] = problem
    return [dict(sorted(span.items())) for span in found.values()]


def to_search(problems: Iterable[Problem]) -> set[Problem]:
    """The few of each span between which the others' configs follow from measurements without a search."""
    return {span[size] for span in spans(problems) for size in few(span)}


def kept(problems: Iterable[Problem]) -> dict[Problem, Problem]:
    """For each problem the one to measure: itself, or where a span has many sizes the nearest of those chosen."""
    found = {}
    for span in spans(problems):
        chosen = _chosen(list(span))
        for size, problem in span.items():
            found[problem] = span[min(chosen, key=lambda other, size=size: abs(math.log(other / size)))]  # type: ignore[misc]
    return found


def _chosen(sizes: Sequence[int]) -> list[int]:
    """Those to search, and in each gap at most two others, in either half of it the one that fewest tiles divide."""
    searched = few(sizes)
    found = list(searched)
    for small, large in itertools.pairwise(searched):
        between = [size for size in sizes if small < size < large]
        middle = math.sqrt(small * large)
        for half, (low, high) in (
            ([size for size in between if size <= middle], (small, middle)),
            ([size for size in between if size > middle], (middle, large)),
        ):
            found += sorted(half, key=lambda size: (size & -size, abs(math.log(size * size / (low * high)))))[:1]
    return found


def unsized(problem: Problem) -> object:
    """The problem but for the sizes along which look-ups serve ranges."""
    return _without(problem, problem.free)


def _without(problem: Problem, names: Iterable[str]) -> object:
    return type(problem), tuple((name, value) for name, value in problem.as_dict().items() if name not in names)
