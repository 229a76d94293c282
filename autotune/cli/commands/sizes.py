"""Sizes on the command line: lists and ranges, their combinations, sizes verified between them, held-out sizes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autotune.cli.options import Request
from autotune.errors import InputError
from autotune.problem import Problem
from autotune.results.figures import dashed
from autotune.sizes import parse_sizes

MOST_PROBLEMS = 1000


@dataclass(frozen=True)
class Sizes:
    """The sizes of a grid: every combination of those searched, then the held-out ones, then those only verified."""

    every: list[dict[str, int]]
    apart: list[dict[str, int]]
    dimension: str = ""
    """The free dimension, that of held-out and verified sizes."""
    verified: list[dict[str, int]] = field(default_factory=list)

    @classmethod
    def of(cls, request: Request, held_out: str | None, verify: int = 0) -> Sizes:
        """Parse the command line; raises InputError.

        With ``verify``, the number of ranks, sizes between are verified: a range of the free dimension is then searched
        at every other of its sizes and at its last, and verified at the others and off the grid of tiles.
        """
        lists = {
            name: parse_sizes(request.given[name], f"--{name}") for name in request.size_names if name in request.given
        }
        if held_out is None:
            name = next(iter(request.workload.problem_type.free), "")
            if not verify or len(lists.get(name, ())) < 2:
                return cls(_combined(lists), [])
            given = sorted(lists[name])
            lists[name] = [*given[:-1:2], given[-1]] if ".." in request.given[name] else given
            between = [size for size in _between(given, verify) if size not in lists[name]]
            return cls(_combined(lists), [], name, _combined({**lists, name: between}))
        name, apart = _free_dimension(request.workload.problem_type, lists), parse_sizes(held_out, "--held-out")
        both = [size for size in apart if size in lists[name]]
        if both:
            raise InputError(f"--held-out {held_out}: {both[0]} is also in --{dashed(name)} {request.given[name]}")
        return cls(_combined(lists), _combined({**lists, name: apart}), name)

    @property
    def varied(self) -> list[str]:
        found = [*self.every, *self.apart, *self.verified]
        return [name for name in found[0] if len({sizes[name] for sizes in found}) > 1]


OFF_GRID = 0.7
"""The place of the verified size in the gap between two others, as a share of it."""


def _between(sizes: Sequence[int], ranks: int) -> list[int]:
    """The sizes, and in each gap one that no tile divides: an odd number for each rank."""
    found = list(sizes)
    for small, large in itertools.pairwise(sizes):
        if large - small >= 8 * ranks:
            found.append(ranks * (2 * round((small + OFF_GRID * (large - small)) / (2 * ranks)) + 1))
    return sorted(found)


def _combined(lists: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    """Every combination, the last dimension varying fastest."""
    count = math.prod(len(values) for values in lists.values())
    if count > MOST_PROBLEMS:
        raise InputError(f"{count} problems; one grid tunes at most {MOST_PROBLEMS}")
    return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]


def _free_dimension(kind: type[Problem], lists: Mapping[str, Sequence[int]]) -> str:
    """The dimension of the held-out sizes: one that the grid varies and in which look-ups take a neighbour's config."""
    free = [name for name in kind.free if name in lists]
    varied = [name for name in free if len(lists[name]) > 1] or free
    if len(varied) != 1:
        allowed = " or ".join(f"--{dashed(name)}" for name in kind.free) or "none in this workload"
        raise InputError(
            f"--held-out needs sizes of exactly one dimension in which look-ups take a neighbour's config: {allowed}"
        )
    return varied[0]
