"""The progress of a grid: sizes done and left, the time that they take, the rows so far."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from autotune.cli import output
from autotune.cli.watch import clock_text
from autotune.text import Table


class GridProgress:
    """Told of each size as it begins and ends; makes the line and the table above a live view."""

    def __init__(self, header: Sequence[str], to_tune: Sequence[bool], budget: float) -> None:
        """``to_tune``: of each size, whether it is not in the cache; ``budget``: seconds per size, maybe infinite."""
        self._header, self._to_tune, self._budget = header, to_tune, budget
        self._begin = self._began = time.monotonic()
        self._took: list[float] = []
        self._number = -1
        self._rows: list[Sequence[str]] = []

    def next_size(self) -> None:
        self._number += 1
        self._began = time.monotonic()

    def done(self, cells: Sequence[str]) -> None:
        """The size that began last has a row now."""
        if self._to_tune[self._number]:
            self._took.append(time.monotonic() - self._began)
        self._rows.append(cells)

    def line(self) -> str:
        """``size 3 of 12, 0:35 elapsed, about 1:10 left``."""
        line = f"size {self._number + 1} of {len(self._to_tune)}, {clock_text(time.monotonic() - self._begin)} elapsed"
        left = self.seconds_left()
        return line if left is None else f"{line}, about {clock_text(left)} left"

    def seconds_left(self) -> float | None:
        """Mean of the sizes tuned so far, before the first the budget, times those left; None if unknown."""
        each = statistics.mean(self._took) if self._took else self._budget
        if not math.isfinite(each):
            return None
        here = max(0.0, each - (time.monotonic() - self._began)) if self._to_tune[self._number] else 0.0
        return here + each * sum(self._to_tune[self._number + 1 :])

    def render(self) -> RenderableType:
        """Called from the drawing thread."""
        line = Text(self.line(), style="bold")
        return Group(output.rich_table(Table(self._header, self._rows)), Text(), line) if self._rows else line
