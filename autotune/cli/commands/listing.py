"""``tune list``: tuned and unfinished problems, as a table that fits the terminal."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from autotune.cli import output, session
from autotune.cli.entry_filter import EntryFilter, fields
from autotune.cli.options import Database, Json, completing, database_option, unknown
from autotune.db import CacheKey, Entry, StudyRecord, TrialRecord
from autotune.db.values import key_values
from autotune.errors import NoDatabase
from autotune.results.figures import dashed, devices_text, evaluated, microseconds, options_text, regime_options
from autotune.results.repeat import command_of
from autotune.results.result import Result, short_problem, why_stale
from autotune.text import Table, counted, visible
from autotune.workloads import is_reference, names, workload

HEADER = ("problem", "takes", "vs library", "mode", "tuned")
Cells = tuple[str, ...]

ALIKE = "this key has results from several versions of the kernel; show one with"

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="WORKLOAD|--FIELD VALUE",
        help="Only this workload, only problems of these fields; of a size also a list or a range: --m 16..1024.",
        autocompletion=completing(lambda: [dashed(name) for name in names()]),
    ),
]


def list_entries(of: Words = None, db: Database = None, json: Json = False) -> None:
    """List tuned and unfinished problems, newest first: tune list all-gather-gemm --m 4096 --dtype bf16."""
    words = of or []
    name = words[0] if words and not words[0].startswith("-") else None
    stored = workload(name).name if name is not None and is_reference(name) else name
    wanted = EntryFilter(name=stored, given=fields(words[1:] if name is not None else words))
    begun, entries, known = _found(wanted, db)
    if name is not None and not is_reference(name) and dashed(name) not in {*known, *map(dashed, names())}:
        raise unknown(name, sorted({*known, *map(dashed, names())}))
    if json:
        unfinished = [_unfinished_dict(*each) for each in begun]
        output.data_json([*unfinished, *({**Result.of(entry).to_dict(), "finished": True} for entry in entries)])
    elif begun or entries:
        keys = [*(study.key for study, _ in begun), *(entry.key for entry in entries)]
        alike = Counter(entry.key for entry in entries)
        going_on = [study for study, _ in begun if not why_stale(study.key, study.provenance)]
        rows = [cells(entry, told=alike[entry.key] > 1) for entry in entries]
        first = [_begun_cells(study, trials, study in going_on) for study, trials in begun]
        output.data(table(keys, [*first, *rows]))
        for why, count in Counter(filter(None, (Result.of(entry).stale for entry in entries))).most_common():
            output.say(f"stale, and not served: {count} of {len(entries)}: {why}")
        kernels = [entry for entry in entries if entry.key.is_kernel and alike[entry.key] > 1]
        if kernels:
            output.say(f"{ALIKE}: tune show {dashed(kernels[0].key.workload)} --study {kernels[0].study_id}")
        if going_on:
            output.say(_continuing(going_on[0], db))
        if entries:
            output.next_step(f"tune report{database_option(db)} --all --open")
    elif words:
        output.say(f"nothing of {' '.join(words)} is tuned yet; tune list shows everything")
    else:
        output.say("nothing is tuned yet")
        output.next_step("tune demo", "or tune WORKLOAD, see tune --help")


def _found(wanted: EntryFilter, db: str | None) -> tuple[list[tuple[StudyRecord, int]], list[Entry], set[str]]:
    """Unfinished studies with their trials' number, entries, and every workload's name in the database."""
    try:
        with session.open_store(db, create=False) as store:
            running = [s for s in reversed(store.studies("running")) if s.is_begun and wanted.takes(s.key)]
            begun = [(study, _tried(store.trials(study.id))) for study in running]
            every = store.entries()
            entries = [entry for entry in every if wanted.takes(entry.key)]
            if not entries and not begun:
                wanted.check_fields(every)
            return begun, entries, {*map(dashed, store.names())}
    except NoDatabase as error:
        output.say(str(error))
        return [], [], set()


def _tried(trials: Iterable[TrialRecord]) -> int:
    from autotune.tuning.finals import of_search

    return evaluated(Counter(trial.evaluation.outcome for trial in of_search(trials)))


def table(keys: Sequence[CacheKey], rows: Sequence[Cells]) -> str:
    """One table; where that is wider than the terminal, one for each workload and device."""
    both = list(zip(keys, rows, strict=True))
    flat = [(dashed(key.workload), cells[0], devices_text(key), *cells[1:]) for key, cells in both]
    text = output.columns(Table(("workload", HEADER[0], "device", *HEADER[1:]), flat), output.WIDE)
    if max(map(len, text.splitlines())) <= output.table_width():
        return text
    parts: dict[str, list[Cells]] = {}
    for key, cells in both:
        parts.setdefault(f"{dashed(key.workload)} on {devices_text(key)}", []).append(cells)
    return "\n\n".join(f"{title}\n{output.columns(Table(HEADER, cells))}" for title, cells in parts.items())


def cells(entry: Entry, *, told: bool) -> Cells:
    """``told``: its study, of several of the same key."""
    of = Result.of(entry)
    return (
        short_problem(entry.key) + f" (study {entry.study_id})" * told,
        microseconds(of.microseconds),
        of.speedup_text,
        of.mode,
        f"{entry.finished_at:%Y-%m-%d}" + (", stale" if of.stale else ""),
    )


def _begun_cells(study: StudyRecord, trials: int, goes_on: bool) -> Cells:
    """``goes_on``: with today's sources and versions; with others a command begins anew."""
    told = f"unfinished, {counted(trials, 'trial')}" + ("" if goes_on else ", stale")
    return (short_problem(study.key), "", "", "", told)


def _unfinished_dict(study: StudyRecord, trials: int) -> dict[str, Any]:
    return {
        **key_values(study.key), "config": None, "latency": None, "study": study.id,
        "trials": trials, "finished": False,
    }  # fmt: skip


def _continuing(study: StudyRecord, db: str | None) -> str:
    """The line on how to continue an unfinished study; a decorated kernel's has no command."""
    key = study.key
    if key.is_kernel:
        return f"unfinished: the next launch of {key.workload} with this key continues it"
    words = f"{command_of(key, study.origin, None)} {options_text(key.fields)}{regime_options(key.regime)}"
    told = f"unfinished: the same command continues it, as {words}{database_option(db)}"
    file = visible(study.origin.rpartition(":")[0])
    if key.workload in names() or os.path.exists(file):
        return told
    return (
        f"{told}, in the folder of {file}"
        if file
        else f"unfinished: the command that began {key.workload} continues it"
    )
