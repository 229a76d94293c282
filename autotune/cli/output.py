"""Output: data to stdout, talk to stderr; JSON, aligned columns and named lines.

Names come from databases, files and users: what would act on a terminal is shown as an escape.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from autotune.errors import AutotuneError, InputError
from autotune.text import json_text, visible, visible_lines


def data(text: str) -> None:
    """The answer, on stdout."""
    typer.echo(visible_lines(text))


def write(text: str, file: Path | None, what: str) -> None:
    """The answer into a file, or where none is named on stdout; raises InputError where it cannot be written.

    It is written as it is: Markdown and JSON hold nothing hidden, whoever made them saw to that.
    """
    if file is None:
        typer.echo(text, nl=False)
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"file {file}: {error.strerror}") from error
    say(f"wrote {what} to {file}")


def data_json(value: Any) -> None:
    """The answer as one JSON value, on stdout."""
    typer.echo(json_text(value))


def check_stdout() -> None:
    """Raise AutotuneError where stdout was closed: an answer would go nowhere."""
    if sys.stdout is None:
        raise AutotuneError("stdout is closed: let it go to a file, or to /dev/null")


def give_stdout_up(error: OSError) -> None:
    """Say why it cannot be written; what it still holds would fail once more when the process ends."""
    complain(AutotuneError(f"stdout cannot be written: {error.strerror}"))
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str) -> None:
    """A word to the person at the terminal, on stderr."""
    typer.echo(visible_lines(text), err=True)


def complain(error: Exception) -> None:
    """Why it cannot be done, on stderr."""
    say(f"tune: error: {error}")


@contextmanager
def telling_warnings() -> Iterator[None]:
    """Within it, what the package warns of is said: rows left out, a server that does not answer."""
    handler = _Warnings(logging.WARNING)
    logger = logging.getLogger("autotune")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Warnings(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        """Say it."""
        say(f"tune: warning: {record.getMessage()}")


def columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as aligned plain text, a line for each row."""
    lines = [[visible(text) for text in row] for row in (header, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    padded = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in lines]
    return "\n".join(line.rstrip() for line in padded)


def named(lines: Sequence[tuple[str, str]]) -> str:
    """Lines with their names before them, aligned; an empty name continues the line above, as do a text's own lines."""
    width = max(len(name) for name, _ in lines)
    below = "\n" + " " * (width + 2)
    return "\n".join(f"{visible(name).ljust(width)}  {text.replace(chr(10), below)}".rstrip() for name, text in lines)
