"""The one place where the database's failures become StoreError, each with one line that says what to do."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError

from autotune.errors import InvalidConfig, StoreError

BUSY_SECONDS = 30
"""How long one process waits for another to let go of the database."""

ANOTHER = "name another file, or set AUTOTUNE_DB"

SQLITE: Mapping[str, str] = {
    "SQLITE_NOTADB": f"is not a SQLite database; {ANOTHER}",
    "SQLITE_CORRUPT": "is damaged (truncated or overwritten); restore a copy, or move it away and tune again",
    "SQLITE_READONLY": "is read-only; make the file and its folder writable, or name another file to write to",
    "SQLITE_BUSY": f"was locked by another process for {BUSY_SECONDS} s; try again when that one is done",
    "SQLITE_CANTOPEN": "cannot be opened; its folder must exist, and you need the right to read and write there",
    "SQLITE_PERM": "cannot be opened; you need the right to read and write it",
    "SQLITE_IOERR": "could not be read or written; look at the disk, its quota and the limit on the size of files",
    "SQLITE_FULL": "cannot grow, its disk is full; free some space and run the same command again",
}
"""What to say, by the beginning of SQLite's own error name."""

POSTGRESQL: Mapping[str, str] = {
    "55P03": f"was locked by another process for {BUSY_SECONDS} s; try again when that one is done",
    "42501": "may not be written by this user; grant it the rights (CREATE on the schema the first time)",
    "25006": "is read-only; name the primary server to write to",
    "53100": "cannot grow, its disk is full; free some space and run the same command again",
}
"""What to say, by the beginning of PostgreSQL's SQLSTATE."""


@contextmanager
def translated(place: str) -> Iterator[None]:
    """Turn what a database driver or the file system raises into a StoreError about ``place``."""
    try:
        yield
    except (DBAPIError, sqlite3.Error, OSError) as error:
        raise StoreError(f"database {place} {_explained(error)}") from error


@contextmanager
def intact(place: str, table: str, row: int) -> Iterator[None]:
    """Turn a failure to read one row's values into a StoreError that names the row."""
    try:
        yield
    except (ValueError, TypeError, KeyError, InvalidConfig) as error:
        raise StoreError(
            f"database {place}: row {row} of table {table} is damaged ({error}); mend or delete that row"
        ) from error


def _explained(error: DBAPIError | sqlite3.Error | OSError) -> str:
    cause = error.orig if isinstance(error, DBAPIError) else error
    for attribute, explanations in (("sqlite_errorname", SQLITE), ("sqlstate", POSTGRESQL)):
        code = str(getattr(cause, attribute, None) or "")
        for beginning, explanation in explanations.items():
            if code.startswith(beginning):
                return explanation
    if isinstance(cause, OSError) and cause.strerror:
        return f"cannot be used ({cause.strerror}: {cause.filename}); {ANOTHER}"
    first_line = str(cause).strip().partition("\n")[0].rstrip(":")
    instead = ANOTHER if isinstance(cause, sqlite3.Error) else "set AUTOTUNE_DB to another"
    return f"cannot be used ({first_line}); check it, or {instead}"
