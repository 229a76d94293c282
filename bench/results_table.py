"""What every table of the pages has: steps that measure it, and a way to be written; and how its steps are planned."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steps import Step

ROOT = Path(__file__).parents[1]
LONG = 400.0
"""Seconds that a step of several sizes may take by estimate."""

BESIDE = 9
"""Seconds that a size takes besides its search: finals, baselines, rivals."""

START = 20
"""Seconds to start the ranks, of the tuner and for the rivals."""


@dataclass(frozen=True)
class Setting:
    """On what the tables are measured."""

    world_size: int
    toy: bool = False
    """Tiny problems under the interpreter, a few trials: does it work at all?"""

    def effort(self, seconds: int) -> list[str]:
        return ["--trials=1", "--effort=quick"] if self.toy else [f"--budget={seconds}s"]


Stored = dict[str, Any]
Results = Callable[[str], list[Stored]]
"""Gets a table's name, returns what its steps found, in order."""


class Table(ABC):
    """One table of a page, between its markers."""

    name: str
    page = "docs/results.md"
    needs: tuple[str, ...] = ()
    """Other tables that it is written from."""
    toy = True
    """True if the interpreter can make one."""
    least_gpus = 2

    def steps(self, setting: Setting) -> list[Step]:
        return []

    @abstractmethod
    def render(self, results: Results) -> str:
        """Markdown, from what the steps of it and of those that it needs have found."""


def options(fields: dict[str, Any]) -> list[str]:
    """A problem's fields as words of ``tune``."""
    words = {name.replace("_", "-"): value for name, value in fields.items()}
    return [
        (f"--{name}" if value else f"--no-{name}") if isinstance(value, bool) else f"--{name}={value}"
        for name, value in words.items()
    ]


def listed(values: Sequence[int]) -> str:
    return ",".join(map(str, values))


def chunks(values: Sequence[Any], seconds_each: float) -> list[Sequence[Any]]:
    """As few equal parts as keep each within ``LONG`` seconds."""
    most = max(1, int((LONG - START) // seconds_each))
    count = -(-len(values) // most)
    size = -(-len(values) // count)
    return [values[first : first + size] for first in range(0, len(values), size)]


def rows_of(stored: Sequence[Stored]) -> list[dict[str, Any]]:
    return [row for each in stored for row in each["found"]]
