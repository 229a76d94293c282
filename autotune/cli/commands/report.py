"""``tune report``: what studies found, as Markdown, JSON or web pages."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli import output, session
from autotune.cli.entry_filter import EntryFilter
from autotune.cli.options import Database, Output, one_of
from autotune.db import CacheKey, StudyRecord
from autotune.errors import AutotuneError, InputError, UnknownWorkload
from autotune.files import write_whole
from autotune.text import counted, did_you_mean, json_text
from autotune.workloads import Workload, installed_workload, names

if TYPE_CHECKING:
    from autotune.results.study import Study

FOLDER = Path("tune-report")
"""The folder of all pages, unless another one is named."""

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


def report(
    wanted: EntryFilter, format: Format = None, file: Output = None, all: All = False, open: Open = False,
    db: Database = None,
) -> None:  # fmt: skip
    """Reports on every finished study that has the given dimensions; without any, on all of them."""
    if not all:  # those pages take a folder, whose name may have a dot
        output.check_ending(file, ENDINGS)
    if format is None:
        ending = file.suffix.lower() if file is not None else ""
        format = ENDINGS.get(ending) or ("html" if open or all else "md")
    if format not in FORMATS:
        raise InputError(f"format {format!r}: allowed: {', '.join(FORMATS)}{did_you_mean(format, FORMATS)}")
    if format != "html" and (open or all):
        raise InputError(f"--all and --open are web pages; leave them out for {format}, which has every report in one")
    studies, running = read(wanted, db, or_unfinished=format == "html")
    if format == "html":
        wider = dataclasses.replace(wanted, given={})
        beside = read(wider, db, or_unfinished=True)[0] if wanted.given and len(studies) == 1 else studies
        write_pages(studies, running, file, beside, open=open, all=all)
    elif format == "json":
        told = counted(len(studies), "report")
        output.write(json_text([each.to_dict() for each in studies]) + "\n", file, told)
    else:
        from autotune.report.markdown import to_markdown, to_overview

        several = [to_overview(studies)] if len(studies) > 1 else []
        text = "\n\n".join([*several, *map(to_markdown, studies)]).rstrip() + "\n"
        output.write(text, file, counted(len(studies), "report"))


def read(wanted: EntryFilter, db: str | None, *, or_unfinished: bool) -> tuple[list[Study], list[StudyRecord]]:
    """The finished studies that are asked for, the newest first, and the unfinished ones. Where none is finished, the
    last unfinished one ``or_unfinished``, so that one can see why.
    """
    from autotune.results.study import finished, unfinished

    with session.open_store(db, create=False) as store:
        begun = [study for study in store.studies("running") if study.is_begun and wanted.takes(study.key)]
        try:
            entries = wanted.entries(store)
        except AutotuneError:
            if not (begun and or_unfinished):
                raise
            return [unfinished(store, begun[-1], wanted.workload or _loaded(begun[-1].key))], begun
        return [finished(store, entry, wanted.workload or _loaded(entry.key)) for entry in entries], begun


def write_pages(
    studies: Sequence[Study], running: Sequence[StudyRecord], target: Path | None, beside: Sequence[Study], *,
    open: bool, all: bool,
) -> None:  # fmt: skip
    """A page, with its range among studies ``beside``, or a folder of pages with an index."""
    from autotune.report.page import to_html

    if all or len(studies) > 1:
        if target is not None and target.suffix.lower() == ".html":
            raise InputError(
                f"{target}: several pages and their index take a folder; name one with --output, or one study by its "
                "dimensions"
            )
        _write_folder(studies, running, target or (FOLDER if all else None), open=open)
        return
    if target is None and not open and output.stdout().isatty():
        raise InputError("a web page is not for a terminal: name a file with --output, or show it with --open")
    file = target or (_temporary() if open else None)
    output.write(to_html(studies[0], beside), file, "a page")
    if open and file is not None:
        _show(file)


def _write_folder(studies: Sequence[Study], running: Sequence[StudyRecord], folder: Path | None, *, open: bool) -> None:
    from autotune.report.page import file_name, to_html, to_index

    if folder is None:
        raise InputError(f"{len(studies)} studies are {len(studies)} pages: name a folder for them with --output, or "
                         "more of the problem's dimensions")  # fmt: skip
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"folder {folder}: {error.strerror}") from error
    for study in studies:
        write_whole(folder / file_name(study), to_html(study, studies).encode())
    write_whole(folder / "index.html", to_index(studies, running).encode())
    told = f"{len(studies)} pages and their index" if len(studies) > 1 else "1 page and its index"
    output.say(f"wrote {told} to {folder}")
    if open:
        _show(folder / "index.html")


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


def _temporary() -> Path:
    """A file that a browser finds after this process has ended."""
    handle, name = tempfile.mkstemp(prefix="tune-report-", suffix=".html")
    os.close(handle)
    return Path(name)


def _show(file: Path) -> None:
    if not webbrowser.open(file.resolve().as_uri()):
        output.say(f"no browser could be started here; open {file} in one")
