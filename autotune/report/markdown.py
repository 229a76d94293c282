"""Renders studies as Markdown: the views' sentences, tables and notes, without their charts."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from autotune.report import lead
from autotune.report.view import Table, View
from autotune.report.views import best, headline, importance, origin, overview, routings, search, taxes
from autotune.results.figures import asked_text, dashed
from autotune.results.study import Study
from autotune.text import markdown, markdown_code

VIEWS = (taxes.view, headline.view, routings.view, best.view, search.endings, importance.ends, origin.view)

LANGUAGES = {"Python": "python", "command": "sh", "JSON": "json"}

WIDTH = 104
"""Characters in a line of prose."""


def to_markdown(study: Study) -> str:
    sections = [section(found) for each in VIEWS if (found := each(study)) is not None]
    return "\n\n".join([_lead(study), *sections, f"To repeat: {markdown_code(study.repeat)}"]) + "\n"


def to_overview(studies: Sequence[Study]) -> str:
    """Many problems as one table; their own reports follow."""
    return f"# {len(studies)} tuned problems\n\n{table(overview.table(studies))}"


def section(view: View, level: int = 2) -> str:
    parts = [f"{'#' * level} {markdown(view.title)}"] if view.title else []
    parts += [markdown(textwrap.fill(view.text, WIDTH, break_on_hyphens=False), lines=True)] if view.text else []
    parts += [f"```text\n{view.drawn}\n```"] if view.drawn else []
    for each in view.tables:
        parts += [f"{markdown(each.caption)}:"] if each.caption else []
        parts.append(table(each))
    parts += ["\n".join(f"- {markdown(note)}" for note in view.notes if note)]
    return "\n\n".join(filter(None, parts))


def table(of: Table) -> str:
    """A table whose columns line up as plain text too; cells are escaped as text."""
    # GFM takes no ":" alone
    cells = [[markdown(text) for text in row] for row in (of.header, *of.rows)]
    widths = [max(2, *(len(row[column]) for row in cells)) for column in range(len(of.header))]
    right = [of.align[column : column + 1] == "r" for column in range(len(of.header))]
    rule = ["-" * (width - 1) + (":" if r else "-") for width, r in zip(widths, right, strict=True)]
    padded = [
        [text.rjust(width) if r else text.ljust(width) for text, width, r in zip(row, widths, right, strict=True)]
        for row in cells
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in (padded[0], rule, *padded[1:]))


def _lead(study: Study) -> str:
    parts = [f"# {markdown(f'{dashed(study.key.workload)}: {asked_text(study.key, study.problem)}')}"]
    parts.append(f"**{markdown(lead.verdict(study))}**")
    claim, computed = lead.claim(study), lead.operation(study)
    parts += [markdown(f"{claim}.")] if claim else []
    parts += [markdown(f"Computed: {computed}.")] if computed else []
    parts.append(markdown(" ".join(filter(None, [lead.circumstances(study), lead.tried(study)]))))
    parts += [f"> {markdown(note)}" for note in lead.notes(study)]
    parts += [markdown(words)] if (words := lead.words(study)) else []
    parts += [f"```{LANGUAGES[name]}\n{text}\n```" for name, text in study.copies.items()]
    return "\n\n".join(parts)
