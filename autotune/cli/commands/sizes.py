"""Sizes on the command line: lists and ranges, their combinations, sizes verified between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autotune.cli.options import Request
from autotune.errors import InputError, InvalidProblem
from autotune.machine import Machine
from autotune.sizes import Lists, combined, parse_sizes, spread

MOST_PROBLEMS = 1000


@dataclass(frozen=True)
class Sizes:
    """The sizes of a grid: every combination of those searched, then those only verified."""

    searched: list[dict[str, int]]
    verified: list[dict[str, int]] = field(default_factory=list)
    along: Sequence[str] = ()
    """The dimensions of verified sizes."""

    @classmethod
    def of(cls, request: Request, machine: Machine, verify: bool) -> Sizes:
        """Parse the command line; raises InputError.

        With ``verify`` sizes between are verified: of a range few are searched, and the others are verified, as is one
        off the grid of tiles in each gap, of lists too.
        """
        sizes = [f.name for f in request.workload.problem_type.in_order() if f.metadata["kind"] == "size"]
        names = [name for name in sizes if name in request.given and name != "world_size"]
        lists = {name: parse_sizes(request.given[name], f"--{name}") for name in names}
        count = math.prod(len(values) for values in lists.values())
        if count > MOST_PROBLEMS:
            raise InputError(f"{count} problems; one grid tunes at most {MOST_PROBLEMS}")
        return _spread(request, lists, machine) if verify else cls(combined(lists))

    @property
    def every(self) -> list[dict[str, int]]:
        return [*self.searched, *self.verified]

    @property
    def varied(self) -> list[str]:
        return [name for name in self.searched[0] if len({sizes[name] for sizes in self.every}) > 1]


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
    return Sizes(searched, [each for each in verified if valid(each)], along)
