"""Turns the database's failures into StoreError, each with one line that says what to do."""

from __future__ import annotations

import errno
import logging
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy.exc import DBAPIError, OperationalError

from autotune.errors import InvalidConfig, StoreError
from autotune.text import visible

LOG = logging.getLogger("autotune")

BUSY_SECONDS = 30
"""Seconds for which a process waits for another's lock."""

ANOTHER = "name another file, or set AUTOTUNE_DB"

SQLITE: Mapping[str, str] = {
    "SQLITE_NOTADB": f"is not a SQLite database; {ANOTHER}",
    "SQLITE_CORRUPT": "is damaged (truncated or overwritten); restore a backup, or move it away and tune again",
    "SQLITE_READONLY": "is read-only; make the file and its folder writable, or name another file to write to",
    "SQLITE_BUSY": f"was locked by another process for {BUSY_SECONDS} s; try again when it is done",
    "SQLITE_CANTOPEN": "cannot be opened; its folder must exist and be readable and writable",
    "SQLITE_PERM": "cannot be opened; make it readable and writable",
    "SQLITE_IOERR": "could not be read or written; check the disk, its quota and the file size limit",
    "SQLITE_FULL": "cannot grow, its disk is full; free some space and run the same command again",
}
"""Explanations by the prefix of SQLite's error name."""

POSTGRESQL: Mapping[str, str] = {
    "57014": "did not finish a statement in time; check the server's load, then try again",
    "55P03": f"was locked by another process for {BUSY_SECONDS} s; try again when it is done",
    "42501": "may not be written by this user; grant it the rights (CREATE on the schema the first time)",
    "25006": "is read-only; name the primary server to write to",
    "53100": "cannot grow, its disk is full; free some space and run the same command again",
}
"""Explanations by the prefix of PostgreSQL's SQLSTATE."""

LOST = ("08", "57P")
"""SQLSTATE prefixes of a failed connection and of a server that stops or starts."""


DAMAGE = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, InvalidConfig)
"""Errors of reading a damaged row's values."""

_NAMED: set[tuple[str, str, int]] = set()
"""Damaged rows already warned of."""

T = TypeVar("T")


@contextmanager
def translated(place: str) -> Iterator[None]:
    """Turn what a database driver or the file system raises into a StoreError about ``place``."""
    try:
        yield
    except (DBAPIError, sqlite3.Error, OSError) as error:
        raise StoreError(f"database {place} {explained(error)}") from error
    except UnicodeError as error:  # SQLite quotes what it cannot read, and Python cannot decode the quotation
        raise StoreError(f"database {place} {SQLITE['SQLITE_CORRUPT']}") from error


def intact(place: str, table: str, row: int, read: Callable[[], T]) -> T | None:
    """The result of ``read`` on one row; None, with a warning that names the row, if it is damaged."""
    try:
        return read()
    except DAMAGE as error:
        name_damage(place, table, row, f"{type(error).__name__}: {error}"[:200])
        return None


def name_damage(place: str, table: str, row: int, what: str) -> None:
    """Warn of a skipped row, once per row and process."""
    if (place, table, row) in _NAMED:
        return
    _NAMED.add((place, table, row))
    delete = f"DELETE FROM {table} WHERE id = {row};"
    if table.endswith("studies"):
        delete = f"DELETE FROM {table.removesuffix('studies')}trials WHERE study_id = {row}; {delete}"
    LOG.warning(
        "database %s: row %d of table %s is damaged (%s) and skipped; repair it or delete it: %s",
        place, row, table, visible(what), delete,
    )  # fmt: skip


def is_lost(error: DBAPIError) -> bool:
    """True if a server cannot be reached or dropped the connection; it may be back soon."""
    cause = error.orig
    if isinstance(cause, sqlite3.Error):
        return False
    state = getattr(cause, "sqlstate", None)
    return error.connection_invalidated or (state.startswith(LOST) if state else isinstance(error, OperationalError))


def explained(error: DBAPIError | sqlite3.Error | OSError) -> str:
    """The cause and the fix, as text after the database's name."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    statement = error.statement or "" if isinstance(error, DBAPIError) else ""
    if getattr(cause, "sqlstate", None) == "42501" and statement.lstrip().upper().startswith("SELECT"):
        return "may not be read by this user; grant it USAGE on the schema and SELECT on its tables"
    for attribute, explanations in (("sqlite_errorname", SQLITE), ("sqlstate", POSTGRESQL)):
        code = str(getattr(cause, attribute, None) or "")
        for beginning, explanation in explanations.items():
            if code.startswith(beginning):
                return explanation
    if isinstance(cause, OSError) and cause.errno == errno.ENOLCK:
        return (
            f"lies on a file system without locks (NFS without a lock service?); {ANOTHER}: a file on a local disk, or "
            "postgresql+psycopg://USER@HOST/NAME"
        )
    if isinstance(cause, OSError) and cause.strerror:
        where = f": {cause.filename}" if cause.filename else ""  # a lock's failure, as on NFS, names no file
        return f"cannot be used ({cause.strerror}{where}); {ANOTHER}"
    first_line = str(cause).strip().partition("\n")[0].rstrip(":")
    instead = ANOTHER if isinstance(cause, sqlite3.Error) else "set AUTOTUNE_DB to another one"
    return f"cannot be used ({first_line}); check it, or {instead}"
