"""SQLite: ownership of the file, creation under one lock, WAL, immediate transactions.

A new database is drafted under another name, with its schema and in WAL mode, and renamed into place: nobody ever sees
half of one. The journal mode is never switched on a file in use, since that ignores the busy timeout.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, NullPool, QueuePool, create_engine, event

from autotune.db.engines.database import WRITING
from autotune.db.engines.failures import ANOTHER, BUSY_SECONDS
from autotune.db.engines.schema import make_tables
from autotune.errors import NoDatabase, StoreError

APPLICATION_ID = int.from_bytes(b"irat")
"""Marks the header of every file of this package (``PRAGMA application_id``)."""

LENIENT = functools.partial(str, encoding="utf-8", errors="surrogateescape")
"""Reads text that is not UTF-8, so that it damages only its row; SQLite's default would fail the whole query."""

SMALLEST_PAGE = 512
"""Bytes; SQLite treats a shorter file as an empty database."""


def sqlite_engine(path: Path, *, create: bool) -> Engine:
    """Connect to the database file; make it if it is missing. Never touches another program's file."""
    if not _holds_data(path):
        if not create:
            raise NoDatabase(f"no database at {path} yet; tune something to make one: tune WORKLOAD …")
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path):
            if not _holds_data(path):
                _make(path)
    _check_owner(path)
    _check_locks(path)
    return _engine(path)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file beside the database: one process at a time makes it."""
    with open(path.with_name(path.name + ".lock"), "ab") as file:
        deadline = time.monotonic() + BUSY_SECONDS
        while not _took_lock(file):
            if time.monotonic() > deadline:
                raise StoreError(
                    f"another process has been creating {path} for {BUSY_SECONDS} s; "
                    "stop it, then run the same command again"
                )
            time.sleep(0.01)
        yield


def _took_lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holds_data(path: Path) -> bool:
    """True if the path holds data; raises StoreError if no database file can be there."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(status.st_mode):
        raise StoreError(f"{path} is a folder; name a file in it, for example {path / 'cache.db'}")
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(f"{path} is not a regular file; {ANOTHER}")
    return status.st_size > 0


def _check_owner(path: Path) -> None:
    """Raise StoreError unless the header marks the file as ours. Writes nothing, and takes no lock if possible.

    SQLite reads the header: closing a descriptor of our own would drop this process's other locks on the file.
    """
    if path.stat().st_size < SMALLEST_PAGE:
        raise StoreError(f"{path} is not a SQLite database; {ANOTHER}")
    try:
        found = _application_id(path, "ro&immutable=1")
    except sqlite3.DatabaseError:
        # Damaged, or another process is bringing its journal home just now: that shows when locks are heeded.
        found = _application_id(path, "ro")
    if found != APPLICATION_ID:
        raise StoreError(f"{path} is another program's SQLite database; {ANOTHER}")


def _check_locks(path: Path) -> None:
    """Raise OSError (ENOLCK) where the file system has no locks, which SQLite would take for a busy database.

    By the lock file: closing a descriptor of the database itself would drop this process's other locks on it.
    """
    try:
        with open(path.with_name(path.name + ".lock"), "r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (FileNotFoundError, PermissionError, BlockingIOError):
        return  # copied without it, or not ours to write; or locked, so that there are locks
    except OSError as error:
        if error.errno == errno.EROFS:
            return
        raise


def _application_id(path: Path, mode: str) -> int:
    with closing(sqlite3.connect(_uri(path, mode), uri=True, timeout=BUSY_SECONDS)) as connection:
        (found,) = connection.execute("PRAGMA application_id").fetchone()
    return int(found)


def _make(path: Path) -> None:
    """Draft a complete, empty database and rename it into place; the caller holds the lock."""
    draft = path.with_name(path.name + ".new")
    _remove_journals(path)  # of a database that is gone: it would be replayed into the new one
    _remove(draft)
    try:
        _draft(draft)
    except BaseException:  # Ctrl-C too: no draft is left behind
        _remove(draft)
        raise
    draft.replace(path)


def _draft(draft: Path) -> None:
    draft.touch()
    engine = _engine(draft)
    try:
        with engine.execution_options(**{WRITING: True}).begin() as connection:
            make_tables(connection)
    finally:
        engine.dispose()
    with closing(_connect(draft)) as raw:
        raw.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        raw.execute("PRAGMA journal_mode = WAL")


def _remove(path: Path) -> None:
    _remove_journals(path)
    path.unlink(missing_ok=True)


def _remove_journals(path: Path) -> None:
    for ending in ("-journal", "-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)


def _engine(path: Path) -> Engine:
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        creator=lambda: _connect(path),
        poolclass=QueuePool if file_is_writable(path) else NullPool,
    )
    opened = _identity(path)

    def begin(connection: Connection) -> None:
        """Writers take the lock at once: an upgrade from a read lock is refused without waiting."""
        writes = connection.get_execution_options().get(WRITING, False)
        if writes and (now := _identity(path)) != opened:  # SQLite would write on into the file that nobody finds
            journals = f"delete {path.name}-wal and {path.name}-shm, which would damage the file there now, then "
            raise StoreError(
                f"database {path} was deleted, moved or replaced while this process had it open, so nothing more is "
                f"stored; {journals if now else ''}run the same command again"
            )
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    event.listen(engine, "begin", begin)
    event.listen(engine, "close", _roll_back)
    return engine


def _identity(path: Path) -> tuple[int, int] | None:
    """The file now at the path, as SQLite tells files apart; None without one."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _roll_back(connection: sqlite3.Connection, record: object) -> None:
    """A connection that SQLAlchemy closes because of Ctrl-C would hold the lock as long as one of its cursors lives."""
    connection.rollback()


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        _uri(path, _mode(path)), uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    connection.text_factory = LENIENT
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


def _mode(path: Path) -> str:
    """Read-only files are read even in a folder where SQLite cannot put its shared memory."""
    if file_is_writable(path):
        return "rw"
    return "ro" if path.with_name(path.name + "-wal").exists() else "ro&immutable=1"


def file_is_writable(path: Path) -> bool:
    """True if SQLite can write the file and its folder."""
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)


def _uri(path: Path, mode: str) -> str:
    return f"file:{quote(os.fsencode(path))}?mode={mode}"
