"""Changes as views: a table for each workload, what explains a change below it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence

from autotune.db import Entry
from autotune.outcome import Regime
from autotune.report.view import Table, View
from autotune.results.changes import Change, Changes, Side, Verdict
from autotune.results.figures import (
    INTERPRETER_NOTE,
    NOT_TOLD_APART,
    dashed,
    device_text,
    microseconds,
    plain,
    problem_text,
)
from autotune.results.order import fields_in_order
from autotune.results.regimes import tuned_for
from autotune.text import counted

Row = tuple[Entry, Change | str]
"""An entry of today with its change, or one that a side lacks with ``new`` or ``missing``."""

TITLE = "What changed from A to B"

NEWEST = "Where a problem has several results, the newest counts."

WITHOUT_OVERHEAD = (
    "Where one side's times lack what our operator adds on the host, as a replay's do, both are compared without it."
)

BY_SPREAD = "Some were measured once: their ± is the spread of iterations, which does not cover changes between runs."


def views(changes: Changes) -> list[View]:
    """The two sides, the workloads by name, the conclusion."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for change in changes.changes:
        groups[_title(change.then, change.now)].append((change.now, change))
    for name, entries in (("new", changes.new), ("missing", changes.missing)):
        for entry in entries:
            groups[_title(entry, entry)].append((entry, name))
    sides = [_side(name, side) for name, side in (("A", changes.a), ("B", changes.b))]
    notes = [
        NEWEST * any(len(side.entries) > side.problems for side in (changes.a, changes.b)),
        BY_SPREAD * any(change.ratio.rounds == 0 for change in changes.changes),
        WITHOUT_OVERHEAD * any(change.without_overhead for change in changes.changes),
        INTERPRETER_NOTE * any(change.now.key.is_interpreted for change in changes.changes),
    ]
    return [
        View("sides", TITLE, notes=[*sides, *notes]),
        *(_view(title, groups[title]) for title in sorted(groups)),
        View("conclusion", "", conclusion(changes)),
    ]


def conclusion(changes: Changes) -> str:
    """``1 slower, 3 faster, 12 the same, 2 new, 1 missing (beyond the noise, and by 2 % or more)``."""
    told = ", ".join(f"{count} {name}" for name, count in changes.counted.items() if count)
    return f"{told} (a change is beyond the noise, and {100 * changes.threshold:g} % or more)"


def _side(name: str, side: Side) -> str:
    dates = sorted(f"{entry.finished_at:%Y-%m-%d}" for entry in side.entries)
    tuned = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    counts = f"{counted(side.problems, 'problem')}, {counted(len(side.entries), 'result')}"
    return f"{name} {side.place} ({counts}, tuned {tuned})"


def _title(then: Entry, now: Entry) -> str:
    one, other = device_text(then.key), device_text(now.key)
    where = one if one == other else f"{one}, then {other}"
    return f"{dashed(then.key.workload)} on {where}, for {tuned_for(then.key)}"


def _view(title: str, rows: Sequence[Row]) -> View:
    """One workload, one regime, one machine on each side, by rising size."""
    fields = [fields_in_order(entry.key) for entry, _ in rows]
    names = [name for name in dict.fromkeys(n for each in fields for n in each) if name != "world_size"]
    varying = [name for name in names if len({json.dumps(each.get(name)) for each in fields}) > 1] or names[:1]
    common = {name: value for name, value in fields[0].items() if name not in varying}
    rows = sorted(rows, key=lambda row: _place(varying, row[0]))
    header = [*varying, "A", "B", "B over A", ""]
    table = Table(header, [_cells(varying, *row) for row in rows], "r" * len(varying) + "rrrl")
    return View(title, title, problem_text(common), tables=[table], notes=_notes(varying, rows))


def _place(varying: Sequence[str], entry: Entry) -> list[tuple[bool, float, str]]:
    values = [entry.key.fields.get(name) for name in varying]
    return [
        (False, float(value), "") if isinstance(value, int | float) else (True, 0.0, json.dumps(value))
        for value in values
    ]


def _cells(varying: Sequence[str], entry: Entry, change: Change | str) -> list[str]:
    fields = entry.key.fields
    sizes = [plain(fields[name]) if name in fields else "" for name in varying]
    if isinstance(change, str):
        return [*sizes, *(["", _time(entry)] if change == "new" else [_time(entry), ""]), "", change]
    # the times of the interpreter say nothing about a ratio
    quotient = "" if entry.key.is_interpreted else change.ratio.text.removesuffix(" (by spread)")
    return [*sizes, _time(change.then), _time(change.now), quotient, change.verdict.value]


def _time(entry: Entry) -> str:
    return microseconds(entry.winner.latency.of(Regime(entry.key.regime)))


def _notes(varying: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Reasons, as far as known: other versions, another mode, another config that both measured in turns."""
    changes = [change for _, change in rows if isinstance(change, Change)]
    versions = dict.fromkeys(change.then.provenance.changes(change.now.provenance) for change in changes)
    notes = [f"from A to B: {what}" for what in versions if what]
    for change in changes:
        fields = change.now.key.fields
        where = " ".join(f"{plain(name)}={plain(fields[name])}" for name in varying if name in fields)
        notes += [f"{where}: {_config_change(change)}"] if change.verdict is not Verdict.SAME else []
    return notes


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
