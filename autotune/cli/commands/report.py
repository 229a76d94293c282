"""``tune report``: what studies found, as Markdown, JSON or a web page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli import output, session
from autotune.cli.commands import pages
from autotune.cli.options import Database, Output, Request, one_of
from autotune.cli.wanted import Wanted
from autotune.db import CacheKey
from autotune.errors import InputError, UnknownWorkload
from autotune.suggestion import did_you_mean
from autotune.text import counted, json_text
from autotune.workloads import Workload, installed_workload, names

FORMATS = ("md", "json", "html")
ENDINGS = {".md": "md", ".txt": "md", ".json": "json", ".html": "html"}
"""File endings, and the format of each unless another one is named."""

Format = Annotated[
    str | None,
    typer.Option(
        "--format", **one_of(FORMATS),
        help="Markdown, JSON, or a web page in one file; by default as --output's name ends, else md.",
    ),
]  # fmt: skip
All = Annotated[
    bool,
    typer.Option("--all", help="Web pages of all matching studies, with an index, in a folder (tune-report, or -o)."),
]
Open = Annotated[bool, typer.Option("--open", help="Show the web page in a browser; implies --format html.")]


def report(context: typer.Context, format: Format = None, output: Output = None, all: All = False, open: Open = False,
           db: Database = None) -> None:  # fmt: skip
    """Report on finished studies; on all workloads if none is named."""
    if context.invoked_subcommand is None:
        write(Wanted(), format, output, db, open, all)
    elif (format, output, all, open, db) != (None, None, False, False, None):
        raise InputError("options of tune report go after the workload's name")


def report_workload(
    request: Request, format: Format = None, output: Output = None, all: All = False, open: Open = False,
    db: Database = None,
) -> None:  # fmt: skip
    """Reports on every finished study that has the given dimensions; without any, on all of them."""
    write(Wanted.of(request), format, output, db, open, all)


def write(
    wanted: Wanted, format: str | None, file: Path | None, db: str | None, open: bool, all: bool = False
) -> None:  # fmt: skip
    """Build the reports and write them, the newest first."""
    if not all:  # those pages take a folder, whose name may have a dot
        output.check_ending(file, ENDINGS)
    if format is None:
        ending = file.suffix.lower() if file is not None else ""
        format = ENDINGS.get(ending) or ("html" if open or all else "md")
    if format not in FORMATS:
        raise InputError(f"format {format!r}: allowed: {', '.join(FORMATS)}{did_you_mean(format, FORMATS)}")
    if format != "html" and (open or all):
        raise InputError(f"--all and --open are web pages; leave them out for {format}, which has every report in one")
    if format == "html":
        pages.write_pages(wanted, file, db, open=open, all=all, load=_loaded)
        return
    from autotune.report.markdown import to_markdown, to_overview
    from autotune.results.study import finished

    with session.open_store(db, create=False) as store:
        entries = wanted.entries(store)
        studies = [finished(store, entry, wanted.workload or _loaded(entry.key)) for entry in entries]
    if format == "json":
        text = json_text([each.to_dict() for each in studies])
    else:
        several = [to_overview(studies)] if len(studies) > 1 else []
        text = "\n\n".join([*several, *(to_markdown(each) for each in studies)]).rstrip()
    output.write(text + "\n", file, counted(len(studies), "report"))


def _loaded(key: CacheKey) -> Workload | None:
    """The installed workload; None for a decorated kernel, and for a workload that is not installed."""
    if key.is_kernel:
        return None
    try:
        return installed_workload(key.workload)
    except UnknownWorkload:
        name, known = key.workload, ", ".join(names())
        output.say(f"workload {name} is not installed (installed: {known}); reported without its space")
        return None
