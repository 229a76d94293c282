"""The gaps in a collection of studies: results that are stale here, sizes that others have, studies without an end."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.db import StudyRecord
from autotune.report.view import Table, View
from autotune.report.views.many import Field, fields_of
from autotune.results.figures import asked_text, dashed, options_text, regime_options
from autotune.results.order import fields_in_order
from autotune.results.result import why_stale
from autotune.results.study import Study

TEXT = "Seen from the machine and the versions that made this page."


def view(studies: Sequence[Study], unfinished: Sequence[StudyRecord]) -> View | None:
    """None where nothing is stale, missing or unfinished."""
    tables = [table for table in (_stale(studies), _missing(studies), _unfinished(unfinished)) if table.rows]
    return View("gaps", "Stale, missing, unfinished", TEXT, tables=tables) if tables else None


def _stale(studies: Sequence[Study]) -> Table:
    rows = []
    for study in studies:
        why = why_stale(study.key, study.record.provenance)
        if why:
            rows.append([study.title, asked_text(study.key, study.problem), why, study.repeat])
    return Table(["workload", "problem", "stale, and not served", "tune it again"], rows, "llll", "Stale")


def _missing(studies: Sequence[Study]) -> Table:
    rows = [row for field in fields_of(studies) for row in _missing_in(field)]
    return Table(["workload", "missing", "tune it"], rows, "lll", "Sizes that other problems of the workload have")


def _missing_in(field: Field) -> list[list[str]]:
    rows = []
    for line in field.lines:
        for size in field.sizes:
            if size not in line.points and len(line.points) > 1:
                told = f"{field.size}={size} of {line.name}"
                problem = {**line.problem, field.size: size}
                command = f"{field.first.command} {options_text(problem)}{regime_options(field.first.regime)}"
                rows.append([field.first.title, told, command if field.first.command else "in its program"])
    return rows


def _unfinished(records: Sequence[StudyRecord]) -> Table:
    rows = []
    for record in records:
        problem = asked_text(record.key, fields_in_order(record.key))
        rows.append([dashed(record.key.workload), problem, f"{record.created_at:%Y-%m-%d %H:%M} UTC"])
    caption = "Unfinished: the same tune command goes on"
    return Table(["workload", "problem", "begun"], rows, "lll", caption)
