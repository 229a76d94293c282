"""The problems of a live module: what its forward calls, and what the pass finds in its graphs."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

from autotune.files import write_whole
from autotune.models.forward import Call
from autotune.models.problem_lists import write_list
from autotune.models.spans import kept, unsized
from autotune.problem import Problem
from autotune.runtime.call import LISTENERS, Ways

Place = tuple[tuple[Problem, ...], ...]
"""The alternatives for one place in a graph."""


class Collected(Counter[Problem]):
    """Counts of calls by problem, in the order of the first calls."""

    def __init__(self, counts: Iterable[Problem] | Mapping[Problem, int] = ()) -> None:
        super().__init__(counts)
        self.places: Counter[Place] = Counter()
        """Places in compiled graphs that have alternatives."""

    def called(self, problem: Problem) -> None:
        self[problem] += 1

    def found(self, ways: Ways, replaced: bool) -> None:
        place = tuple(map(tuple, ways))
        self.update(chain(*place[replaced:]))
        if sum(map(len, place)) > 1:
            self.places[place] += 1

    def text(self) -> str:
        """The YAML that ``tune model`` and ``tune fleet`` take. Of many sizes it has few to search and some to verify
        between them; the others, whose calls count as the nearest one's, are served by what these tell.
        """
        return write_list(self._calls())

    def write(self, file: str | Path) -> None:
        write_whole(Path(file), self.text().encode())

    def _calls(self) -> Iterator[Call]:
        """Those that have no alternatives, then place by place."""
        alone = Counter(self)
        for place, count in self.places.items():
            for problem in chain(*place):
                alone[problem] -= count
        stands_for = kept(alone)
        yield from (Call("", stands_for[problem], count) for problem, count in alone.items() if count > 0)
        names: dict[object, str] = {}
        for place, count in self.places.items():
            name = names.setdefault(tuple(tuple(map(unsized, way)) for way in place), f"place {len(names) + 1}")
            yield from _placed(_resized(place, stands_for[place[0][0]]), count, name)


def _resized(place: Place, stand_in: Problem) -> Place:
    """A place of the size of a problem that is measured in the stead of its first."""
    sizes = {name: getattr(stand_in, name) for name in stand_in.free}
    return tuple(tuple(dataclasses.replace(problem, **sizes) for problem in way) for way in place)


def _placed(place: Place, count: int, name: str) -> Iterator[Call]:
    for number, way in enumerate(place, 1):
        for problem, times in Counter(way).items():
            yield Call("", problem, times * count, name, number if len(way) > 1 else 0)


@contextmanager
def collect() -> Iterator[Collected]:
    """Count the problems of all operators that are called meanwhile, on this rank.

        with autotune.collect() as problems:
            model(tokens)
        problems.write("problems.yaml")

    With ``fusing``, what the compiler finds and does not replace counts too, once as its graph is compiled; what it
    could put in one place are alternatives. A graph from the compiler's cache is not looked at again.
    """
    problems = Collected()
    LISTENERS.append(problems)
    try:
        yield problems
    finally:
        LISTENERS[:] = [each for each in LISTENERS if each is not problems]  # counters with equal counts are equal
