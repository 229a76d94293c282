"""A view: a heading, a sentence, charts and their tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.text import Table as Table  # a chart's content as text

Option = dict[str, Any]
"""What Apache ECharts draws, without functions, so that it can be tested without a browser."""


@dataclass(frozen=True)
class Chart:
    """One chart: what it is called, what a reader hears instead of it, its option, and its height in pixels where its
    legend has one row.
    """

    name: str
    label: str
    option: Option
    height: int = 320
    small: bool = False
    """True for one of several that stand beside each other."""
    tab: str = ""
    """The button that shows it, where charts of a view have several; those of the first are shown."""
    folded: bool = False


@dataclass(frozen=True)
class View:
    name: str
    """A word; the section's anchor."""
    title: str
    text: str = ""
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = field(default=())
    drawn: str = ""
    """The charts as characters, for a text."""
    hint: str = ""
    """Instructions for the charts; shown only where they are drawn."""
    fold: str = ""
    """The title of folded charts."""
