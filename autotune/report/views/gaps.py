"""The gaps in a collection of studies: results that are stale here, sizes that others have, studies without an end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from autotune.db import StudyRecord
from autotune.report.view import Table, View
from autotune.results.crossover import families
from autotune.results.figures import asked_text, dashed, options_text, problem_text, regime_options
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
        if why and not study.record.provenance.replay_of:
            rows.append([study.title, asked_text(study.key, study.problem), why, study.repeat])
    return Table(["workload", "problem", "stale, and not served", "tune it again"], rows, "llll", "Stale")


def _missing(studies: Sequence[Study]) -> Table:
    """Sizes that one family of problems has, and another of the same workload, machine and regime has not."""
    groups: dict[tuple[object, ...], list[dict[int, Study]]] = defaultdict(list)
    for name, members in families(studies, least=1):
        key = members[0][1].key
        machine = (key.world_size, key.device, key.arch, key.interconnect)
        groups[name, key.workload, machine, key.regime].append(dict(members))
    rows = [row for (name, *_), group in groups.items() for row in _missing_in(str(name), group)]
    return Table(["workload", "missing", "tune it"], rows, "lll", "Sizes that other problems of the workload have")


def _missing_in(name: str, group: Sequence[Mapping[int, Study]]) -> list[list[str]]:
    sizes, firsts = sorted(set().union(*group)), [next(iter(members.values())) for members in group]
    rows = []
    for members, first in zip(group, firsts, strict=True):
        rest = {field: value for field, value in first.problem.items()
                if field != name and any(each.problem.get(field) != value for each in firsts)}  # fmt: skip
        for size in [size for size in sizes if size not in members and len(members) > 1]:
            command = f"{first.command} {options_text({**first.problem, name: size})}{regime_options(first.regime)}"
            told = f"{name}={size} of {problem_text(rest)}"
            rows.append([first.title, told, command if first.command else "in its program"])
    return rows


def _unfinished(records: Sequence[StudyRecord]) -> Table:
    rows = []
    for record in records:
        problem = asked_text(record.key, fields_in_order(record.key))
        rows.append([dashed(record.key.workload), problem, f"{record.created_at:%Y-%m-%d %H:%M} UTC"])
    caption = "Unfinished: the same tune command goes on"
    return Table(["workload", "problem", "begun"], rows, "lll", caption)
