"""``tune compare``: what got faster or slower from one database or exported file to another."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli import output, session
from autotune.cli.options import Json, Output
from autotune.db import Entry
from autotune.errors import InputError
from autotune.files import is_database, text_of
from autotune.settings import default_database_url

if TYPE_CHECKING:
    from autotune.results.changes import Side

OF_A_SIDE = "Only results of A that match: until or since (a date), device, workload, triton, torch, … ; repeatable."


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="Database (path or URL), or a file of tune export.")],
    b: Annotated[str | None, typer.Argument(metavar="B", help="The other side.", show_default="your database")] = None,
    of_a: Annotated[list[str], typer.Option("--a", metavar="NAME=VALUE", help=OF_A_SIDE)] = [],  # noqa: B006
    of_b: Annotated[list[str], typer.Option("--b", metavar="NAME=VALUE", help="The same for B.")] = [],  # noqa: B006
    threshold: Annotated[
        str, typer.Option(metavar="PERCENT", help="The smallest change that counts, if it is beyond the noise.")
    ] = "2%",
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    output_file: Output = None,
    json: Json = False,
) -> None:
    """Compare two collections of results: faster or slower from A to B beyond the noise, new, missing.

    Exit code 0 if nothing is slower, 1 if something is, 2 for bad input. Both may be the same database:
    tune compare cache.db cache.db --a until=2026-11-01 --b since=2026-11-02.
    """
    from autotune.report.changes import views
    from autotune.report.markdown import section
    from autotune.results.changes import Verdict
    from autotune.results.changes import compare as compared
    from autotune.text import json_text

    if json and markdown:
        raise InputError("--json and --markdown: choose one")
    output.check_ending(output_file, (".txt", ".md", ".json"))
    if output_file is not None and not (json or markdown):
        json, markdown = (output_file.suffix.lower() == ending for ending in (".json", ".md"))
    smallest = _share(threshold)
    with ExitStack() as stack:
        ours, theirs = (
            _side(place, conditions, stack) for place, conditions in ((a, of_a), (b or default_database_url(), of_b))
        )
        found = compared(ours, theirs, smallest)
    if json:
        output.write(json_text(found.to_dict()) + "\n", output_file, "changes")
    else:
        text = (lambda view: section(view, 1 if view.name == "sides" else 2)) if markdown else output.view
        output.write("\n\n".join(map(text, views(found))) + "\n", output_file, "changes")
    if found.counts[Verdict.SLOWER]:
        raise typer.Exit(1)


def _side(place: str, conditions: list[str], stack: ExitStack) -> Side:
    from autotune.results.changes import Side, chosen

    pairs = [_pair(each) for each in conditions]
    if "://" not in place and not is_database(Path(place)):
        return Side(place, chosen(_exported(place), pairs))
    store = stack.enter_context(session.open_store(place, create=False))
    return Side(store.place, chosen(store.history(), pairs), store)


def _exported(place: str) -> list[Entry]:
    """The entries in a file of tune export. Raises InputError."""
    from autotune.sharing import read

    try:
        text = text_of(place)
    except InputError as error:
        raise InputError(f"{place}: {error}; give a database or a file of tune export") from error
    try:
        return read(text)
    except InputError as error:
        raise InputError(f"{place}: {error}") from error


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"{text!r}: write it like until=2026-11-01 or triton=3.6.0")
    return name, value


def _share(text: str) -> float:
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = -1.0
    if not 0 <= percent <= 1000:
        raise InputError(f"--threshold {text}: write a percentage like 2% or 0.5%")
    return percent / 100
