"""Sizes on the command line: lists and ranges, their combinations, sizes verified between them, held-out sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autotune.cli.options import Request
from autotune.errors import InputError, InvalidProblem
from autotune.machine import Machine
from autotune.problem import Problem
from autotune.results.figures import dashed
from autotune.sizes import Lists, combined, parse_sizes, spread

MOST_PROBLEMS = 1000


@dataclass(frozen=True)
class Sizes:
    """The sizes of a grid: every combination of those searched, then the held-out ones, then those only verified."""

    every: list[dict[str, int]]
    apart: list[dict[str, int]]
    dimension: str = ""
    """The dimension of the held-out sizes."""
    along: Sequence[str] = ()
    """The dimensions of verified sizes."""
    verified: list[dict[str, int]] = field(default_factory=list)

    @classmethod
    def of(cls, request: Request, held_out: str | None, machine: Machine, verify: bool) -> Sizes:
        """Parse the command line; raises InputError.

        With ``verify`` sizes between are verified: of a range few are searched, and the others are verified, as is one
        off the grid of tiles in each gap, of lists too.
        """
        lists = {
            name: parse_sizes(request.given[name], f"--{name}") for name in request.size_names if name in request.given
        }
        _check_count(lists)
        if held_out is None:
            return _spread(request, lists, machine) if verify else cls(combined(lists), [])
        name, apart = _free_dimension(request.workload.problem_type, lists), parse_sizes(held_out, "--held-out")
        both = [size for size in apart if size in lists[name]]
        if both:
            raise InputError(f"--held-out {held_out}: {both[0]} is also in --{dashed(name)} {request.given[name]}")
        _check_count({**lists, name: apart})
        return cls(combined(lists), combined({**lists, name: apart}), name)

    @property
    def varied(self) -> list[str]:
        found = [*self.every, *self.apart, *self.verified]
        return [name for name in found[0] if len({sizes[name] for sizes in found}) > 1]


def _spread(request: Request, lists: Lists, machine: Machine) -> Sizes:
    along = [name for name in request.workload.problem_type.free if len(lists.get(name, ())) > 1]

    def valid(sizes: Mapping[str, int]) -> bool:
        try:
            Request(request.workload, {**request.given, **sizes}).problem(machine)
        except InvalidProblem:
            return False
        return True

    doubling = [name for name in along if ".." in request.given[name]]
    largest = {name: max(sizes) for name, sizes in lists.items()}
    possible = {name: [size for size in lists[name] if valid({**largest, name: size})] for name in doubling}
    lists = {name: possible.get(name) or sizes for name, sizes in lists.items()}  # 1..8192 begins where ranks share it
    searched, verified = spread(lists, doubling, along, request.world_size(machine), valid)
    return Sizes(searched, [], along=along, verified=[each for each in verified if valid(each)])


def _check_count(lists: Lists) -> None:
    count = math.prod(len(values) for values in lists.values())
    if count > MOST_PROBLEMS:
        raise InputError(f"{count} problems; one grid tunes at most {MOST_PROBLEMS}")


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
