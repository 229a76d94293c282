"""The problems of a live module: what its forward calls, and what the pass finds in its graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autotune.files import write_whole
from autotune.models.forward import Call
from autotune.models.problem_lists import write_list
from autotune.models.spans import kept
from autotune.problem import Problem
from autotune.runtime.call import LISTENERS


class Collected(Counter[Problem]):
    """Counts of calls by problem, in the order of the first calls."""

    def text(self) -> str:
        """The YAML that ``tune model`` and ``tune fleet`` take. Of many sizes it has few to search and some to verify
        between them; the others, whose calls count as the nearest one's, are served by what these tell.
        """
        stands_for = kept(self)
        return write_list(Call("", stands_for[problem], count) for problem, count in self.items())

    def write(self, file: str | Path) -> None:
        write_whole(Path(file), self.text().encode())


@contextmanager
def collect() -> Iterator[Collected]:
    """Count the problems of all operators that are called meanwhile, on this rank.

        with autotune.collect() as problems:
            model(tokens)
        problems.write("problems.yaml")

    With ``fusing``, what the compiler finds and does not replace counts too, once as its graph is compiled. A graph
    from the compiler's cache is not looked at again.
    """
    problems = Collected()

    def add(problem: Problem) -> None:
        problems[problem] += 1

    LISTENERS.append(add)
    try:
        yield problems
    finally:
        LISTENERS.remove(add)
