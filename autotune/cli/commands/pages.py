"""``tune report --format html``: a web page for one study, a folder of them with an index for several."""

from __future__ import annotations

import os
import tempfile
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.cli import output, session
from autotune.cli.wanted import Wanted
from autotune.db import CacheKey, StudyRecord
from autotune.errors import AutotuneError, InputError
from autotune.files import write_whole
from autotune.workloads import Workload

if TYPE_CHECKING:
    from autotune.results.study import Study


FOLDER = Path("tune-report")
"""The folder of all pages, unless another one is named."""


def write_pages(
    wanted: Wanted, target: Path | None, db: str | None,
    *, open: bool, all: bool = False, load: Callable[[CacheKey], Workload | None],
) -> None:  # fmt: skip
    """Build the pages of the studies that are asked for and write them, the newest first.

    Finished ones; where there are none, the last unfinished one, so that one can see why.
    """
    from autotune.report.page import to_html

    studies, running = _studies(wanted, db, load)
    if all or len(studies) > 1:
        if target is not None and target.suffix.lower() == ".html":
            raise InputError(
                f"{target}: several pages and their index take a folder; name one with --output, or one study by its "
                "dimensions"
            )
        _write_folder(studies, running, target or (FOLDER if all else None), open=open)
        return
    text = to_html(studies[0])
    if target is None and not open:
        if output.stdout().isatty():
            raise InputError("a web page is not for a terminal: name a file with --output, or show it with --open")
        output.write(text, None, "")
        return
    file = target or _temporary()
    output.write(text, file, "a page")
    if open:
        _show(file)


def _studies(
    wanted: Wanted, db: str | None, load: Callable[[CacheKey], Workload | None]
) -> tuple[list[Study], list[StudyRecord]]:
    """The studies with a page, and those that are unfinished."""
    from autotune.results.study import finished, unfinished

    with session.open_store(db, create=False) as store:
        begun = [study for study in store.studies("running") if study.is_begun and wanted.takes(study.key)]
        try:
            entries = wanted.entries(store)
        except AutotuneError:
            if not begun:
                raise
            return [unfinished(store, begun[-1], wanted.workload or load(begun[-1].key))], begun
        return [finished(store, entry, wanted.workload or load(entry.key)) for entry in entries], begun


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
        write_whole(folder / file_name(study), to_html(study).encode())
    write_whole(folder / "index.html", to_index(studies, running).encode())
    told = f"{len(studies)} pages and their index" if len(studies) > 1 else "1 page and its index"
    output.say(f"wrote {told} to {folder}")
    if open:
        _show(folder / "index.html")


def _temporary() -> Path:
    """A file that a browser finds after this process has ended."""
    handle, name = tempfile.mkstemp(prefix="tune-report-", suffix=".html")
    os.close(handle)
    return Path(name)


def _show(file: Path) -> None:
    if not webbrowser.open(file.resolve().as_uri()):
        output.say(f"no browser could be started here; open {file} in one")
