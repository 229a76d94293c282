"""The best configs of the search, by what they change in the winner."""

from __future__ import annotations

from autotune.report.view import Table, View
from autotune.results.figures import change_text, config_text, latency_text, microseconds, plain
from autotune.results.study import Study, mode_of

TEXT = (
    "Ordered by latency in the search, where ± is half the distance from the 20th to the 80th percentile of the "
    "iterations. "
)

MOST_CHANGES = 6
"""Changes from the winner that fit a row of a table of 140 columns; the web page and JSON have them all."""


def view(study: Study) -> View | None:
    """Configs of the winner's mode by what they change in it, those of another mode by what they change in its first;
    that first one stands below the table, which would be too wide with it.
    """
    if not study.best or study.winner is None:
        return None
    firsts = {mode_of(study.winner): (study.winner, "the winner")}
    again = any(each.final for each in study.best)
    rows, notes = [], []
    for place, each in enumerate(study.best, start=1):
        mode = mode_of(each.config)
        if mode in firsts:
            change = _folded(change_text(each.config, *firsts[mode]).removeprefix("the winner with "))
        else:
            firsts[mode] = each.config, f"number {place}"
            notes.append(f"Number {place}: {config_text(each.config)}")
            change = f"another mode: {plain(mode)}, see below"
        final = [microseconds(each.final.of(study.regime)) if each.final else ""] if again else []
        rows.append([str(place), latency_text(each.latency, study.regime), *final, change])
    notes += [f"Failed when it was checked again: {config_text(each.config)}" for each in study.disqualified]
    header = ["", "search", *(["finals"] if again else []), "change from the winner"]
    text = TEXT + "The finals, where the best were measured again, chose the winner." * bool(study.remeasured)
    table = Table(header, rows, "r" * (len(header) - 1))
    return View("best", f"The {len(rows)} best", text, tables=[table], notes=notes)


def _folded(change: str) -> str:
    """The first differences; a table has no room for more."""
    words = change.split(" ")
    left = len(words) - MOST_CHANGES
    return change if left <= 0 else f"{' '.join(words[:MOST_CHANGES])} and {left} more"
