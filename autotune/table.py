"""A table of texts, which terminals, Markdown, pages and notebooks render."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """``align`` has ``r`` for each column of numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    align: str = ""
    caption: str = ""
