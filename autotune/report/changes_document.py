"""Changes as text, as Markdown and as JSON-able values: a table for each workload, what explains a change below it."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.db import Entry
from autotune.outcome import Regime
from autotune.report.document import table as markdown_table
from autotune.results.changes import Change, Changes, Side, Verdict
from autotune.results.figures import (
    INTERPRETER_NOTE,
    NOT_TOLD_APART,
    dashed,
    device_text,
    microseconds,
    plain,
    problem_text,
    relative_error,
)
from autotune.results.order import fields_in_order
from autotune.results.regimes import tuned_for
from autotune.text import counted, markdown, visible

Tables = Callable[[Sequence[str], Sequence[Sequence[str]], str], str]
"""Makes a table of header, rows, and an ``r`` for each right-aligned column."""

Row = Change | tuple[Entry, Verdict | str]

NEW, MISSING = "new", "missing"

NEWEST = "Where a problem has several results, the newest counts."

WITHOUT_DOOR = (
    "Where one side's times lack what our operator adds on the host, as a replay's do, both are compared without it."
)

BY_SPREAD = "Some were measured once: their ± is the spread of iterations, which does not cover changes between runs."


@dataclass(frozen=True)
class Group:
    """Results of one workload, one regime, one machine on each side."""

    title: str
    common: dict[str, Any]
    """Fields that all have alike."""
    varying: list[str]
    changes: list[Change]
    new: list[Entry]
    missing: list[Entry]


def to_text(changes: Changes, tables: Tables) -> str:
    """Text for a terminal; ``tables`` fits them to its width."""
    sides = tables(*_sides(changes))
    if not all(visible(side.place) in sides for side in (changes.a, changes.b)):  # too narrow for it
        sides = _sides_text(changes)
    return _document(changes, tables, lambda level, text: _wrapped(text), _wrapped, sides)


def to_markdown(changes: Changes) -> str:
    sides = markdown_table(*_sides(changes))
    return (
        _document(changes, markdown_table, lambda level, text: f"{'#' * level} {markdown(text)}", markdown, sides)
        + "\n"
    )


def to_dict(changes: Changes) -> dict[str, Any]:
    return {
        "a": _side(changes.a),
        "b": _side(changes.b),
        "threshold": changes.threshold,
        "counts": {**{verdict.value: changes.counts[verdict] for verdict in Verdict}, NEW: len(changes.new),
                   MISSING: len(changes.missing)},
        "changes": [_change(change) for change in changes.changes],
        NEW: [_result(entry) for entry in changes.new],
        MISSING: [_result(entry) for entry in changes.missing],
    }  # fmt: skip


def conclusion(changes: Changes) -> str:
    """``1 slower, 3 faster, 12 the same, 2 new, 1 missing (beyond the noise, and by 2 % or more)``."""
    counts: dict[str, int] = {verdict.value: changes.counts[verdict] for verdict in Verdict}
    counts |= {NEW: len(changes.new), MISSING: len(changes.missing)}
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return f"{told} (a change is beyond the noise, and {100 * changes.threshold:g} % or more)"


def groups(changes: Changes) -> list[Group]:
    """Groups by name, each by rising size."""
    found: dict[str, list[Row]] = defaultdict(list)
    for change in changes.changes:
        found[_title(change.then, change.now)].append(change)
    for name, entries in ((NEW, changes.new), (MISSING, changes.missing)):
        for entry in entries:
            found[_title(entry, entry)].append((entry, name))
    return [_group(title, found[title]) for title in sorted(found)]


def _document(
    changes: Changes, tables: Tables, heading: Callable[[int, str], str], shown: Callable[[str], str], sides: str
) -> str:  # fmt: skip
    parts = [heading(1, "What changed from A to B"), sides]
    if any(len(side.entries) > side.problems for side in (changes.a, changes.b)):
        parts.append(shown(NEWEST))
    for group in groups(changes):
        parts.append(heading(2, group.title))
        parts += [shown(problem_text(group.common))] if group.common else []
        rows = [_cells(group, row) for row in _rows(group)]
        header = [*group.varying, "A", "B", "B over A", ""]
        parts.append(tables(header, rows, "r" * len(group.varying) + "rrrl"))
        parts += ["\n".join(f"- {shown(note)}" for note in _notes(group))] if _notes(group) else []
    if any(change.ratio.rounds == 0 for change in changes.changes):
        parts.append(shown(BY_SPREAD))
    if any(change.without_door for change in changes.changes):
        parts.append(shown(WITHOUT_DOOR))
    if any(change.now.key.is_interpreted for change in changes.changes):
        parts.append(shown(INTERPRETER_NOTE))
    return "\n\n".join([*parts, shown(conclusion(changes))])


def _wrapped(text: str) -> str:
    return textwrap.fill(visible(text), 78, subsequent_indent="  ", break_on_hyphens=False)


def _sides(changes: Changes) -> tuple[Sequence[str], Sequence[Sequence[str]], str]:
    rows = []
    for name, side in (("A", changes.a), ("B", changes.b)):
        dates = sorted(f"{entry.finished_at:%Y-%m-%d}" for entry in side.entries)
        tuned = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
        rows.append([name, side.place, str(side.problems), str(len(side.entries)), tuned])
    return ["", "where", "problems", "results", "tuned"], rows, "llrrl"


def _sides_text(changes: Changes) -> str:
    """The two sides as lines: a place gets its own line, to be copied."""
    lines = []
    for name, place, problems, results, tuned in _sides(changes)[1]:
        counts = f"{counted(int(problems), 'problem')}, {counted(int(results), 'result')}"
        lines += [f"{name}  {visible(place)}", f"   {counts}, tuned {tuned}"]
    return "\n".join(lines)


def _title(then: Entry, now: Entry) -> str:
    one, other = device_text(then.key), device_text(now.key)
    where = one if one == other else f"{one}, then {other}"
    return f"{dashed(then.key.workload)} on {where}, for {tuned_for(then.key)}"


def _group(title: str, rows: Sequence[Row]) -> Group:
    entries = [row.now if isinstance(row, Change) else row[0] for row in rows]
    fields = [fields_in_order(entry.key) for entry in entries]
    names = [name for name in dict.fromkeys(n for each in fields for n in each) if name != "world_size"]
    varying = [name for name in names if len({json.dumps(each.get(name)) for each in fields}) > 1]
    varying = varying or names[:1]
    common = {name: fields[0][name] for name in names if name not in varying}
    rows = sorted(rows, key=lambda row: _place(varying, row.now if isinstance(row, Change) else row[0]))
    return Group(
        title, common, varying,
        [row for row in rows if isinstance(row, Change)],
        [row[0] for row in rows if not isinstance(row, Change) and row[1] == NEW],
        [row[0] for row in rows if not isinstance(row, Change) and row[1] == MISSING],
    )  # fmt: skip


def _rows(group: Group) -> list[Row]:
    rows: list[Row] = [*group.changes, *((each, NEW) for each in group.new)]
    rows += [(each, MISSING) for each in group.missing]
    return sorted(rows, key=lambda row: _place(group.varying, row.now if isinstance(row, Change) else row[0]))


def _place(varying: Sequence[str], entry: Entry) -> list[tuple[bool, float, str]]:
    values = [entry.key.fields.get(name) for name in varying]
    return [
        (False, float(value), "") if isinstance(value, int | float) else (True, 0.0, json.dumps(value))
        for value in values
    ]


def _cells(group: Group, row: Row) -> list[str]:
    entry = row.now if isinstance(row, Change) else row[0]
    fields = entry.key.fields
    sizes = [plain(fields[name]) if name in fields else "" for name in group.varying]
    if isinstance(row, Change):
        return [*sizes, _time(row.then), _time(row.now), _quotient(row), row.verdict.value]
    times = ["", _time(entry)] if row[1] == NEW else [_time(entry), ""]
    return [*sizes, *times, "", str(row[1])]


def _time(entry: Entry) -> str:
    return microseconds(entry.winner.latency.of(Regime(entry.key.regime)))


def _quotient(change: Change) -> str:
    """Empty under the interpreter, whose times say nothing about a ratio."""
    return "" if change.now.key.is_interpreted else change.ratio.text.removesuffix(" (by spread)")


def _notes(group: Group) -> list[str]:
    """Reasons, as far as known: other versions, another mode, another config that both measured in turns."""
    notes = [f"from A to B: {what}" for what in dict.fromkeys(_versions(change) for change in group.changes) if what]
    for change in group.changes:
        if change.verdict is Verdict.SAME:
            continue
        fields = change.now.key.fields
        where = " ".join(f"{plain(name)}={plain(fields[name])}" for name in group.varying if name in fields)
        notes.append(f"{where}: {_config_change(change)}")
    return notes


def _versions(change: Change) -> str:
    return change.then.provenance.changes(change.now.provenance)


def _config_change(change: Change) -> str:
    then, now = change.then.winner.config, change.now.winner.config
    if then == now:
        return "the same config"
    one, other = then.get("mode"), now.get("mode")
    mode = f"{plain(one)} before, {plain(other)} now" if one != other else f"another config of mode {plain(one)}"
    if change.beside is None or change.now.key.is_interpreted:
        return mode
    if not change.beside.is_told:
        return f"{mode}; measured in turns in B, its winner and A's config are {NOT_TOLD_APART}"
    return f"{mode}; measured in turns in B, its winner takes {change.beside} of the time of A's config"


def _side(side: Side) -> dict[str, Any]:
    return {"place": side.place, "problems": side.problems, "results": len(side.entries)}


def _change(change: Change) -> dict[str, Any]:
    key = change.now.key
    return {
        "workload": key.workload,
        "problem": fields_in_order(key),
        "world_size": key.world_size,
        "regime": key.regime,
        "a": _result(change.then),
        "b": _result(change.now),
        "ratio": None if key.is_interpreted else dataclasses.asdict(change.ratio),
        "verdict": change.verdict.value,
        "without_door": change.without_door,
        "beside": dataclasses.asdict(change.beside) if change.beside is not None else None,
        "provenance_differences": change.then.provenance.differences(change.now.provenance),
    }


def _result(entry: Entry) -> dict[str, Any]:
    regime = Regime(entry.key.regime)
    return {
        "workload": entry.key.workload,
        "problem": fields_in_order(entry.key),
        "device": entry.key.device,
        "regime": regime.value,
        "config": dict(entry.winner.config),
        "microseconds": entry.winner.latency.of(regime),
        "relative_error": relative_error(entry.winner.latency, regime),
        "rounds": len(entry.winner.latency.in_rounds(regime)),
        "finished_at": entry.finished_at.isoformat(),
        "study": entry.study_id,
    }
