"""A row of the tables: a file of the package, and what is edited there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Edit = tuple[str, str] | tuple[str, str, int]
"""The text, its replacement, and the number of its occurrences if not one."""


@dataclass(frozen=True)
class Mutant:
    """A file of the package with edits; what they break."""

    breaks: str
    file: str
    edits: tuple[Edit, ...]
    case: str
    equivalent: str = ""
    """Why no result can change, if so: it is not counted then."""
    hardware: bool = False
    """Only GPUs can show it: the interpreter runs a rank's programs in turn and every rank sees stores in their order."""

    @property
    def name(self) -> str:
        """One word for each mutant: its case and what it breaks."""
        return f"{self.case}: {self.breaks}"


def rows_of(file: str, *rows: tuple[Any, ...]) -> list[Mutant]:
    """Rows of one file: what breaks, the case, and the edits; a dictionary at the end has further fields."""
    made = []
    for breaks, case, *rest in rows:
        more = rest.pop() if isinstance(rest[-1], dict) else {}
        made.append(Mutant(breaks, file, tuple(rest), case, **more))
    return made


GPU = {"hardware": True}
ANSWERED = {
    "equivalent": "whoever sends a part again has had the result, and whoever sends a result again a part from everybody"
}
DONE = "    wait_for_all(done, epoch + 1, peers, WORLD)\n"
