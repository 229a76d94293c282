"""``tune show``, ``report`` and ``export`` of a stored name that no workload here has: a decorated kernel's, mostly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer.main import get_command

from autotune.cli import card, output, session
from autotune.cli.commands import listing
from autotune.cli.entry_filter import EntryFilter, fields
from autotune.cli.options import Database, Json, database_option, in_context, one_of, unknown
from autotune.db import Entry
from autotune.errors import InputError, NoDatabase
from autotune.results.figures import dashed
from autotune.results.lines import entry_facts
from autotune.results.result import Result
from autotune.text import did_you_mean
from autotune.workloads import Workload, names

InStudy = Annotated[
    int | None, typer.Option("--study", metavar="N", help="If several entries match, the one of this study.")
]

Form = Annotated[
    str | None,
    typer.Option("--as", **one_of(("python", "command", "json")), help="Print the config alone, to paste."),
]

SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}

HELP = (
    "NAME is one that a decorated kernel, or a workload of a file that is not loaded, stored results under. "
    "Any of its fields narrows the choice: --M 4096 --a.dtype float16."
)


def command(name: str, function: Callable[..., None], title: str) -> Any:
    """The command for a stored name; the fields of its problem are the words that no option takes."""

    def run(context: typer.Context, **values: Any) -> None:
        function(_wanted(str(context.info_name), context.args, values.get("db")), **values)

    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    text = f"{title.format(dashed(name))} {HELP}"
    single.command(dashed(name), help=text, context_settings=SETTINGS)(in_context(run, function))
    return get_command(single)


def show(
    wanted: EntryFilter, study: InStudy = None, form: Form = None, db: Database = None, json: Json = False
) -> None:
    """One entry in full, several as a list."""
    with session.open_store(db, create=False) as store:
        entries = of_study(wanted.entries(store), study)
    if json:
        output.data_json({"found": True, "entries": [Result.of(entry).to_dict() for entry in entries]})
    else:
        present(entries, dashed(str(wanted.name)), db, form)


def of_study(entries: Sequence[Entry], study: int | None) -> list[Entry]:
    """The entry of that study, if one is named. Raises InputError where it is none of the entries."""
    found = [entry for entry in entries if study is None or entry.study_id == study]
    if not found:
        there = ", ".join(str(entry.study_id) for entry in entries)
        raise InputError(f"study {study} is none of these: {there}")
    return found


def present(
    entries: Sequence[Entry], name: str, db: str | None, form: str | None, workload: Workload | None = None
) -> None:
    """One entry in full, or its config alone in a ``form`` to paste, several as a list; ``name`` is how the command
    line has it.
    """
    if len(entries) == 1:
        of = Result.of(entries[0], workload)
        if form is None:
            card.show(of, entry_facts(of))
        else:
            output.data(_pasted(of, form))
        return
    if form is not None:
        raise InputError(f"--as {form}: {len(entries)} entries match; name one by --study")
    rows = [listing.cells(entry, told=True) for entry in entries]
    output.data(listing.table([entry.key for entry in entries], rows))
    one = f"tune show {name} --study {entries[0].study_id}{database_option(db)}"
    output.next_step(one, "one of them in full")


def _pasted(of: Result, form: str) -> str:
    forms = {name.lower(): text for name, text in of.copies.items()}
    if form not in forms:
        raise InputError(f"--as {form}: allowed: {', '.join(forms)}{did_you_mean(form, forms)}")
    return forms[form]


def _wanted(name: str, words: Sequence[str], db: str | None) -> EntryFilter:
    """Raises UnknownWorkload for a name that nothing is stored under, InputError for words that are no fields."""
    wanted = EntryFilter(name, fields(words))
    stored: set[str] = set()
    with suppress(NoDatabase), session.open_store(db, create=False) as store:
        stored = {dashed(each) for each in store.names()}
    if dashed(name) not in stored:
        raise unknown(name, [*map(dashed, names()), *sorted(stored - {*map(dashed, names())})])
    return wanted
