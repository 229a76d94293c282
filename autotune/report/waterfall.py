"""The taxes as text of 80 columns: a waterfall from the bulk-synchronous call to perfect overlap, and their table."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.report.draw import cut
from autotune.taxes import ladder
from autotune.taxes.arithmetic import Estimate, estimate
from autotune.taxes.result import Taxes
from autotune.text import counted

WIDTH = 80
NAMES, NUMBERS = 29, 17
"""Columns of a bar's name and of its number; the bar has the rest."""

BLOCKS = " ▏▎▍▌▋▊▉█"
"""Eighths of a column."""

UNITS = ((1e6, "s"), (1e3, "ms"), (1.0, "µs"))


@dataclass(frozen=True)
class Bar:
    """A row of the waterfall: a rung's whole time, or a step's height between two rungs."""

    letter: str
    """A rung's letter; empty for a step."""
    name: str
    found: Estimate
    begin: float
    end: float


def bars(taxes: Taxes) -> list[Bar]:
    """Bars from the top rung down: each rung, then the way to the next, step by step."""
    steps, rows = taxes.steps, []
    for letter in taxes.rungs:
        rung = taxes.of_rung(letter)
        rows.append(Bar(letter, ladder.RUNGS[letter], rung, 0.0, rung.value))
        level = rung.value
        for step in steps:
            if step.above == letter:
                height = taxes.of_step(step)
                rows.append(Bar("", step.name, height, *sorted((level, level - height.value))))
                level -= height.value
    return rows


def unit(largest: float) -> tuple[float, str]:
    """Microseconds in the unit that suits a time, and its name."""
    return next((size, name) for size, name in UNITS if largest >= 10 * size or size == 1)


def number(found: Estimate, size: float) -> str:
    """``12.3 ± 0.4``; ``≈ 0 ± 0.4`` where the interval does not exclude zero."""
    largest = max(abs(found.value), found.error) / size
    digits = 0 if largest >= 1000 else 1 if largest >= 100 else 2
    value = "≈ 0" if found.is_nil else f"{found.value / size:.{digits}f}"
    return f"{value} ± {found.error / size:.{digits}f}"


def waterfall(taxes: Taxes) -> list[str]:
    """Lines of at most WIDTH columns."""
    rows = bars(taxes)
    most = max(bar.end for bar in rows)
    size, name = unit(most)
    room = WIDTH - NAMES - NUMBERS - 2
    lines = [f"{'':{NAMES}}{f'{name} ± 95 %':>{NUMBERS}}"]
    for bar in rows:
        head = f"{bar.letter:<3}{bar.name}" if bar.letter else f"     {bar.name}"
        drawn = _bar(bar.begin / most * room, bar.end / most * room)
        lines.append(f"{cut(head, NAMES - 1):{NAMES}}{number(bar.found, size):>{NUMBERS}}  {drawn}".rstrip())
    return lines


def table(taxes: Taxes) -> list[tuple[str, str]]:
    """The three taxes by name, each with its share of the first rung, and what else was measured."""
    rungs = taxes.rungs
    first = next(iter(rungs))
    whole = taxes.of_rung(first).value
    size, name = unit(max(taxes.of_rung(letter).value for letter in rungs))
    lines = []
    for tax, causes in ladder.TAXES.items():
        found = taxes.of_tax(tax)
        if found is None:
            lines.append((tax, f"not told apart: {_why(taxes, causes)}"))
        else:
            told = not found.is_nil and abs(found.value) <= whole
            share = f", {100 * found.value / whole:.0f} % of {first}" if told else ""
            lines.append((tax, f"{number(found, size)} {name}{share}"))
    for what, about in (("a launch", _launches(taxes)), ("a late rank", _lateness(taxes))):
        if about:
            lines.append((what, about))
    if taxes.barrier:
        small, short = unit(abs(estimate(taxes.barrier).value))
        lines.append(("a barrier", f"{number(estimate(taxes.barrier), small)} {short}, of all ranks on the device"))
    for letter, traced in taxes.traces.items():
        lines.append((f"traced {letter}", f"the twin takes {traced.slowdown:.2f} times as long"))
    return lines


REHEARSAL = (
    "A rehearsal under Triton's interpreter: the rungs are checked and take turns as on GPUs; "
    "their times, and what follows from them, say nothing about GPUs."
)


def caveat(taxes: Taxes) -> str:
    """A warning to stand before the numbers; empty on GPUs."""
    return REHEARSAL if taxes.interpreted else ""


def notes(taxes: Taxes) -> list[str]:
    """Notes on the numbers: missing rungs, dropped rounds, clocks."""
    lines = [f"Rung {letter} is missing: {reason}." for letter, reason in taxes.missing.items()]
    lines.append(f"The tile is that of {taxes.origin}.")
    lines.append(f"{counted(len(taxes.kept), 'round')}, the rungs in turns; ± is half of a bootstrapped 95 % interval.")
    if taxes.clocks_differ:
        lines.append(
            "Clocks differed by more than 3 % in nearly every round: what the power limit costs is among the taxes."
        )
    elif taxes.dropped:
        lines.append(f"Not counted: {counted(taxes.dropped, 'more round')}, in which clocks differed by more than 3 %.")
    return lines


def _why(taxes: Taxes, causes: tuple[str, ...]) -> str:
    """What a tax needs and there is not."""
    rungs = taxes.rungs
    letters = [letter for letter, of_letter in ladder.CAUSES.items() if {*of_letter} & {*causes}]
    order = list(ladder.RUNGS)
    needed = {each for letter in letters for each in (order[order.index(letter) - 1], letter)}
    lacking = ", ".join(letter for letter in order if letter in needed and letter not in rungs)
    return f"there is no rung {lacking}" if lacking else f"empty launches were not measured on {ladder.PHASED}"


def _launches(taxes: Taxes) -> str:
    """``B 1.21 ± 0.05, G 1.3 ± 0.1 µs more for each empty one between the phases``."""
    slopes = taxes.launch_slopes()
    if not slopes:
        return ""
    size, name = unit(max(abs(each.value) for each in slopes.values()))
    each = ", ".join(f"{letter} {number(found, size)}" for letter, found in slopes.items())
    return f"{each} {name} for each more between the phases"


def _lateness(taxes: Taxes) -> str:
    """``B passes 100 % on, D 72 %; …``"""
    slopes, slacks = taxes.late_slopes(), taxes.slacks()
    if not slopes:
        return ""
    size, name = unit(max(dose for doses in taxes.late.values() for dose in doses))
    told = []
    for letter, found in slopes.items():
        absorbed = slacks[letter]
        most = max(taxes.late[letter])
        slack = f"over {most / size:.0f}" if math.isinf(absorbed) else f"{absorbed / size:.1f}"
        told.append(f"{letter} passes on {100 * found.value:.0f} ± {100 * found.error:.0f} %, absorbs {slack} {name}")
    return "\n".join(told)


def _bar(begin: float, end: float) -> str:
    """A bar between two places, in columns; to an eighth at its end."""
    first, whole = int(begin), int(end)
    eighths = round((end - whole) * 8)
    text = " " * first + "█" * (whole - first) + (BLOCKS[eighths] if eighths else "")
    return text if text.strip() else " " * first + "▏"
