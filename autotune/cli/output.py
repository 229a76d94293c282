"""What goes where: data to stdout, talk to stderr; JSON, aligned columns and named lines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from autotune.errors import AutotuneError, InputError


def data(text: str) -> None:
    """The answer, on stdout."""
    typer.echo(text)


def write(text: str, file: Path | None, what: str) -> None:
    """The answer into a file, or where none is named on stdout; raises InputError where it cannot be written."""
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
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


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
    typer.echo(text, err=True)


def complain(error: Exception) -> None:
    """Why it cannot be done, on stderr."""
    typer.echo(f"tune: error: {error}", err=True)


def columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as aligned plain text."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    padded = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in (header, *rows)]
    return "\n".join(line.rstrip() for line in padded)


def named(lines: Sequence[tuple[str, str]]) -> str:
    """Lines with their names before them, aligned; an empty name continues the line above."""
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name.ljust(width)}  {text}".rstrip() for name, text in lines)
