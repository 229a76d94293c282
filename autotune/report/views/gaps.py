"""The gaps in a collection of studies: results that are stale here, sizes that others have, studies without an end."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.db import StudyRecord
from autotune.report.view import Table, View
from autotune.results.crossover import sizes_of
from autotune.results.figures import asked_text, dashed, options_text, problem_text, regime_options
from autotune.results.order import fields_in_order
from autotune.results.result import why_stale
from autotune.results.study import Study

TEXT = "Seen from the machine and the versions that made this page."


@dataclass(frozen=True)
class Line:
    """Problems that differ in one size alone."""

    name: str
    problem: dict[str, object]
    sizes: set[int]


@dataclass(frozen=True)
class Field:
    """All studies of a workload on one machine, in one regime."""

    first: Study
    size: str
    """The size in which the problems differ most."""
    lines: list[Line]

    @property
    def sizes(self) -> list[int]:
        return sorted({size for line in self.lines for size in line.sizes})


def view(studies: Sequence[Study], unfinished: Sequence[StudyRecord]) -> View | None:
    """None where nothing is stale, missing or unfinished."""
    tables = [table for table in (_stale(studies), _missing(studies), _unfinished(unfinished)) if table.rows]
    return View("gaps", "Stale, missing, unfinished", TEXT, tables=tables) if tables else None


def _stale(studies: Sequence[Study]) -> Table:
    rows = []
    for study in studies:
        why = why_stale(study.key, study.record.provenance)
        if why and not study.record.provenance.replay_of:
            rows.append([study.title, asked_text(study.key, study.problem), why, study.repeat])
    return Table(["workload", "problem", "stale, and not served", "tune it again"], rows, "llll", "Stale")


def _missing(studies: Sequence[Study]) -> Table:
    rows = [row for field in fields_of(studies) for row in _missing_in(field)]
    return Table(["workload", "missing", "tune it"], rows, "lll", "Sizes that other problems of the workload have")


def _missing_in(field: Field) -> list[list[str]]:
    rows = []
    for line in field.lines:
        for size in field.sizes:
            if size not in line.sizes and len(line.sizes) > 1:
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


def fields_of(studies: Iterable[Study]) -> list[Field]:
    """Finished studies of several sizes, by workload, machine and regime; of equal problems the first."""
    groups: dict[tuple[Any, ...], list[Study]] = defaultdict(list)
    for study in studies:
        if study.result is not None:
            key = study.key
            machine = (key.world_size, key.device, key.arch, key.interconnect)
            groups[key.workload, machine, key.regime].append(study)
    found: list[Field] = []
    for group in groups.values():
        values = {name: {study.problem.get(name) for study in group} for name in sizes_of(group[0].problem)}
        size = max(values, key=lambda name: len(values[name]), default="")
        if size and len(values[size]) > 1:
            found.append(_field(size, group))
    return found


def _field(size: str, group: Sequence[Study]) -> Field:
    names = list(dict.fromkeys(name for study in group for name in study.problem if name not in (size, "world_size")))
    differing = [name for name in names if len({json.dumps(study.problem.get(name)) for study in group}) > 1]
    lines: dict[str, Line] = {}
    for study in group:
        at = sizes_of(study.problem).get(size)
        if at is not None:
            rest = {name: study.problem[name] for name in differing if name in study.problem}
            told = problem_text(rest)
            lines.setdefault(told, Line(told, study.problem, set())).sizes.add(at)
    return Field(group[0], size, list(lines.values()))
