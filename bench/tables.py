"""Markdown tables: whole, or row by row as measurements end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def head(names: Sequence[str], left: str = "") -> str:
    """The first two lines; columns are flush right but for those that ``left`` marks with an l."""
    return f"{row(names)}\n{row('---' if mark == 'l' else '---:' for mark in left.ljust(len(names)))}"


def table(names: Sequence[str], rows: Iterable[Iterable[object]], left: str = "") -> str:
    return "\n".join([head(names, left), *map(row, rows)])
