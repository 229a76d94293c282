"""A result in the terminal: a sentence, bars, named lines."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from autotune.cli import output
from autotune.results.figures import devices_text
from autotune.results.lines import Bar, Lines, bars, sentence
from autotune.results.result import Result
from autotune.text import visible

WIDTH, NARROWEST = 80, 8
"""Columns of a line of bars, at most; of the longest bar, at least."""

OURS, LIBRARY, BOUND = "green", "bright_black", "cyan"


def show(of: Result, facts: Lines, begin: str = "", end: str = "") -> None:
    """Print it; ``begin`` stands before the sentence, ``end`` behind the problem."""
    told = begin + sentence(of)
    head = output.folded(told[0].upper() + told[1:], "bold green" if of.is_faster else "bold")
    where = "" if of.key.is_interpreted else f" on {devices_text(of.key)}"
    about = output.folded(of.title.replace("  ", f"{where}  ", 1) + end, "dim")
    output.styled(*head, *about, Text(), *drawn(bars(of)), *output.named_lines(facts))


def drawn(found: list[Bar]) -> Iterator[Text]:
    """The bars as lines, and an empty one below them."""
    if not found:
        return
    names, longest = max(len(each.name) for each in found), max(each.microseconds for each in found)
    room = min(output.table_width(), WIDTH) - names - 4
    most = max(NARROWEST, min((room - len(each.text)) * longest / each.microseconds for each in found))
    for place, each in enumerate(found):
        style = BOUND if each.name == "perfect overlap" else LIBRARY if place else OURS
        bar = "█" * max(1, int(most * each.microseconds / longest))
        yield Text.assemble(f"{visible(each.name):{names}}  ", (bar, style), f"  {visible(each.text)}")
    yield Text()
