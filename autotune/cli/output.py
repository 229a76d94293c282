"""Output: data on stdout, messages on stderr; JSON, aligned columns and named lines.

Names come from databases, files and users, so control characters are shown as escapes.
"""

from __future__ import annotations

import codecs
import io
import logging
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

import typer

from autotune.errors import AutotuneError, InputError
from autotune.files import is_database, write_whole
from autotune.text import Table, json_text, visible, visible_lines

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from autotune.report.view import View

WIDE = 10_000

PLAINLY = "plainly"
PLAIN = {"×": "x", "µ": "u", "±": "+-", "…": "...", "·": "-", "→": "->", "–": "-", **dict.fromkeys("▏▎▍▌▋▊▉█", "#")}
"""Our signs, for a terminal whose encoding lacks them."""

LOGGER = logging.getLogger("autotune")


_DATA: list[TextIO] = []
"""The streams of data within ``prints_apart``, the innermost last."""


def stdout() -> TextIO:
    return _DATA[-1] if _DATA else sys.stdout


@contextmanager
def prints_apart() -> Iterator[None]:
    """While it lasts, what others print goes to stderr, such as a user's workload: stdout is for data alone."""
    _DATA.append(stdout())
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _DATA.pop()


def data(text: str) -> None:
    typer.echo(visible_lines(text), file=stdout())


def write(text: str, file: Path | None, what: str) -> None:
    """Write the result to a file, or to stdout if none is named. Raises InputError if the file cannot be written.

    No escaping here: whoever made the Markdown or JSON has done it.
    """
    if file is None:
        typer.echo(text, nl=False, file=stdout())
        return
    write_whole(file, text.encode())
    say(f"wrote {what} to {file}")


def check_file(file: Path) -> None:
    """Raise InputError for a file that could not be written after everything has been measured."""
    try:
        if not file.parent.is_dir():
            raise InputError(f"file {file}: folder {file.parent} does not exist")
        if file.is_dir():
            raise InputError(f"file {file}: it is a folder; name a file in it")
        if is_database(file):
            raise InputError(f"file {file}: it is a database, which this would destroy; name another file")
        writable = os.access(file if file.exists() else file.parent, os.W_OK)
    except OSError as error:  # a folder that may not be looked into, too long a name
        raise InputError(f"file {file}: {error.strerror}") from error
    if not writable:
        raise InputError(f"file {file}: no permission to write it")


def check_ending(file: Path | None, allowed: Iterable[str]) -> None:
    """Raise InputError for a file whose ending promises another format than those that can be written."""
    endings = tuple(allowed)
    if file is not None and file.suffix and not file.name.lower().endswith(endings):
        raise InputError(f"file {file}: ending {file.suffix}: allowed: {', '.join(endings)}, or none")


def data_json(value: Any) -> None:
    """Print the result as one JSON value on stdout."""
    typer.echo(json_text(value), file=stdout())


def check_stdout() -> None:
    """Raise AutotuneError if stdout is closed: the result would be lost.

    From then on both streams show what their encoding lacks in plain letters (x for ×), else as escapes.
    """
    if sys.stdout is None:
        raise AutotuneError("stdout is closed; redirect it to a file or to /dev/null")
    codecs.register_error(PLAINLY, _plainly)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=PLAINLY)


def _plainly(error: UnicodeError) -> tuple[str | bytes, int]:
    """A codec's error handler: one letter in plain ones."""
    if isinstance(error, UnicodeEncodeError) and (letter := error.object[error.start]) in PLAIN:
        return PLAIN[letter], error.start + 1
    return codecs.backslashreplace_errors(error)


def give_up(*streams: TextIO) -> None:
    """Point the streams at /dev/null; else what is left in their buffers would fail again at exit."""
    for stream in streams:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(text: str) -> None:
    typer.echo(visible_lines(text), err=True)


def next_step(command: str, why: str = "") -> None:
    """The last line of a command that has a sensible next one."""
    say(f"Next: {command}" + (f"  # {why}" if why else ""))


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """While it lasts, a terminal shows the text, so that a command says its first word at once."""
    told = f"{text} …" if sys.stderr is not None and sys.stderr.isatty() else ""
    typer.echo(told, nl=False, err=True)
    try:
        yield
    finally:
        typer.echo("\r" + " " * len(told) + "\r" if told else "", nl=False, err=True)


def complain(error: Exception) -> None:
    from rich.console import Console
    from rich.text import Text

    LOGGER.info("error: %s", error)
    told = Text.assemble(("tune: error: ", "bold red"), visible_lines(str(error)))
    Console(stderr=True, highlight=False).print(told, soft_wrap=True)


@contextmanager
def logging_to_stderr() -> Iterator[None]:
    """While it lasts, warnings go to stderr (damaged rows, a server that does not answer), and what ``log`` adds."""
    before, level = list(LOGGER.handlers), LOGGER.level
    LOGGER.addHandler(_ToStderr(logging.WARNING))
    try:
        yield
    finally:
        for handler in [each for each in LOGGER.handlers if each not in before]:
            LOGGER.removeHandler(handler)
            handler.close()
        LOGGER.setLevel(level)


def log(verbose: bool, file: Path | None) -> None:
    """Until ``logging_to_stderr`` ends: tell more on stderr, and everything in a file. Raises InputError."""
    if verbose:
        LOGGER.setLevel(logging.INFO)
        next(each for each in LOGGER.handlers if isinstance(each, _ToStderr)).setLevel(logging.INFO)
    if file is not None:
        try:
            handler = _ToFile(file, encoding="utf-8")
        except OSError as error:
            raise InputError(f"--log-file {file}: {error.strerror}") from error
        handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(message)s"))
        LOGGER.setLevel(logging.INFO)
        LOGGER.addHandler(handler)
        LOGGER.info("tune %s", " ".join(sys.argv[1:]))


class _ToStderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        level = "warning: " if record.levelno >= logging.WARNING else ""
        say(f"tune: {level}{record.getMessage()}")


class _ToFile(logging.FileHandler):
    """A log that is given up, with one warning, once its file cannot be written: a full disk ends no command."""

    failed = False

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self.failed:
            self.failed = True
            say(f"tune: warning: --log-file {self.baseFilename}: {error.strerror}; the log is incomplete")

    def close(self) -> None:
        with suppress(OSError):  # it writes the rest of its buffer, which may fail again
            super().close()


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def columns(of: Table, width: int | None = None) -> str:
    """A table as aligned plain text. In a terminal it fits, and long texts take several lines; else a row is a line.
    Where a column would be narrower than its words, each row is a paragraph without the header.
    """
    from rich.console import Console

    width = width or table_width()
    if not _words_fit([of.header, *of.rows], width):
        return "\n".join(_paragraph(row, width) for row in of.rows)
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(rich_table(of))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines())


def view(of: View) -> str:
    """A view as text: its sentence, tables as wide as the terminal, notes."""

    def wrapped(text: str) -> str:
        return textwrap.fill(visible(text), 78, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)

    tables = [columns(each, shutil.get_terminal_size().columns) for each in of.tables]
    notes = "\n".join(wrapped(f"- {note}") for note in of.notes if note)
    return "\n\n".join(filter(None, [wrapped(of.title), wrapped(of.text), *tables, notes]))


def rich_table(of: Table) -> RenderableType:
    """A table that fits the terminal."""
    from rich import table
    from rich.text import Text

    found = table.Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, name in enumerate(of.header):
        justify: Literal["left", "right"] = "right" if of.align[place : place + 1] == "r" else "left"
        words = max((len(word) for row in of.rows for word in row[place].split()), default=0)
        found.add_column(Text(name), overflow="fold", justify=justify, min_width=min(words, LONGEST_WORD))
    for row in of.rows:
        found.add_row(*(Text(visible(cell)) for cell in row))
    return found


LONGEST_WORD = 24
"""Characters; longer words, such as paths, may be broken."""


def _words_fit(rows: Sequence[Sequence[str]], width: int) -> bool:
    """True if no word of a column is broken when the widest columns are narrowed until the table fits."""
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, cells)) for cells in columns]
    room = width - 2 * (len(widths) - 1)
    level = next((top for top in range(max(widths), 0, -1) if sum(min(each, top) for each in widths) <= room), 0)
    longest = [max((len(word) for cell in cells for word in cell.split()), default=0) for cells in columns]
    return all(min(word, LONGEST_WORD) <= level for word in longest)


def _paragraph(row: Sequence[str], width: int) -> str:
    first, *others = (visible(cell) for cell in row)
    below = "  ".join(cell for cell in others if cell)
    return "\n".join([*textwrap.wrap(first, width), *(f"  {line}" for line in textwrap.wrap(below, max(1, width - 2)))])


def table_width() -> int:
    """The terminal's; without one as much as any row needs."""
    return shutil.get_terminal_size().columns if stdout().isatty() else WIDE


UNIT = re.compile(r"(?<=\d) (?=%|[µm]?s\b)")
"""The space between a number and its unit, where no line ends."""


def folded(text: str, style: str = "", head: str = "", indent: int = 2) -> list[Text]:
    """A text in lines that fit the terminal, behind a dim ``head``; the further ones are indented."""
    from rich.text import Text

    width = max(LONGEST_WORD, table_width() - indent)
    kept = UNIT.sub("\u00a0", visible_lines(text)).split("\n")
    parts = [part.replace("\u00a0", " ") for line in kept
             for part in textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)]  # fmt: skip
    heads = [head, *[" " * indent] * len(parts)]
    return [Text.assemble((first, "dim"), (part, style)) for first, part in zip(heads, parts or [""], strict=False)]


def named_lines(lines: Sequence[tuple[str, str]]) -> list[Text]:
    """Texts with aligned names in front, folded beside them; an empty name continues the line above."""
    width = 2 + max(len(name) for name, _ in lines)
    return [each for name, text in lines for each in folded(text, head=visible(name).ljust(width), indent=width)]


def named(lines: Sequence[tuple[str, str]]) -> str:
    """``named_lines`` without style."""
    return "\n".join(line.plain.rstrip() for line in named_lines(lines))


def styled(*lines: Text) -> None:
    """Print lines on stdout, in a terminal with their styles; NO_COLOR leaves out colours."""
    from rich.console import Console

    console = Console(file=stdout(), highlight=False)
    for line in lines:
        line.rstrip()
        console.print(line, soft_wrap=True)
