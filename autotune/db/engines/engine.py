"""Connects to a database by URL or path, for reading or for writing; or inspects it without changing it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL, Connection, Engine, func, make_url, select
from sqlalchemy.exc import ArgumentError

from autotune.db.engines.database import WRITING, Database
from autotune.db.engines.failures import translated
from autotune.db.engines.postgresql import postgresql_engine
from autotune.db.engines.schema import has_tables, make_tables
from autotune.db.engines.sqlite import file_is_writable, sqlite_engine
from autotune.db.models import Trial
from autotune.errors import NoDatabase, StoreError

ALLOWED = "use a file's path, sqlite:///FILE or postgresql+psycopg://USER@HOST/NAME"

SECRETS = ("password", "sslpassword")
"""Passwords among libpq's parameters."""

MASK = "hidden"

NAMES = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}


def database_url(given: str | os.PathLike[str]) -> URL:
    """Parse a URL or a plain path; raises StoreError for an unusable one."""
    text = os.fspath(given)
    if "://" not in text:
        if not text or "\0" in text or text.startswith(("sqlite:", ":memory:")):
            raise StoreError(f"database {text!r}: {ALLOWED}")
        return _sqlite_url(text)
    scheme = text.partition("://")[0]
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:  # the text may hold a password
        raise StoreError(f"database {scheme}://… is not a valid URL; {ALLOWED}") from error
    if url.drivername in ("postgresql", "postgresql+psycopg"):
        return url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() != "sqlite":
        raise StoreError(f"database {scheme}://…: unknown kind of database; {ALLOWED}")
    if url.drivername not in ("sqlite", "sqlite+pysqlite") or url.query or url.host:
        raise StoreError(f"database {text!r}: write a SQLite database as sqlite:///FILE, with nothing added")
    if url.database in (None, "", ":memory:"):
        raise StoreError(f"database {text!r} would be lost at exit; name a file: sqlite:///FILE")
    return _sqlite_url(str(url.database))


def place_of(url: URL) -> str:
    """The file's path, or the URL with its passwords masked; for messages."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    return str(url.update_query_dict({name: MASK for name in SECRETS if name in url.query}))


def has_secret(given: str) -> bool:
    """True if a URL holds a password."""
    url = database_url(given)
    return url.password is not None or any(name in url.query for name in SECRETS)


def without_secret(given: str) -> str:
    """The URL without its passwords, to be used on hosts that have their own."""
    url = database_url(given)
    plain = URL.create(url.drivername, url.username, None, url.host, url.port, url.database, url.query)
    return str(plain.difference_update_query(SECRETS))


def open_database(url: URL, *, create: bool) -> Database:
    """Connect. With ``create`` also for writing: missing tables are made."""
    engine = _connected(url, create=create)
    place = place_of(url)
    try:
        with engine.connect() as connection:
            there = has_tables(connection, place)
        if not there and not create:
            raise NoDatabase(f"{place} has no iris-autotune tables yet; tune something to make them")
        if not there:
            with engine.execution_options(**{WRITING: True}).begin() as connection:
                make_tables(connection)
    except BaseException:  # Ctrl-C too: no connection is left open
        engine.dispose()
        raise
    return Database(engine, place)


@dataclass(frozen=True)
class Condition:
    place: str
    server: str
    """``SQLite 3.45.1`` or ``PostgreSQL 15.18``."""
    has_tables: bool
    trials: int
    writable: bool


def condition(given: str | os.PathLike[str]) -> Condition:
    """Inspect a database; makes nothing. Raises NoDatabase, and StoreError for an unusable one."""
    url = database_url(given)
    place = place_of(url)
    with translated(place):
        engine = _connected(url, create=False)
        try:
            with engine.connect() as connection:
                return _condition(connection, place)
        finally:
            engine.dispose()


def _connected(url: URL, *, create: bool) -> Engine:
    """An engine on the database as it is; a SQLite file is made, with its tables, if ``create`` says so."""
    if url.get_backend_name() == "sqlite":
        return sqlite_engine(Path(str(url.database)), create=create)
    return postgresql_engine(url)


def _condition(connection: Connection, place: str) -> Condition:
    there = has_tables(connection, place)
    dialect = connection.dialect
    if dialect.name == "sqlite":
        _check_pages(connection, place)
        writable = file_is_writable(Path(place))
    else:
        writable = connection.exec_driver_sql("SHOW transaction_read_only").scalar() == "off"
    count = connection.scalar(select(func.count()).select_from(Trial)) if there else 0
    version = ".".join(map(str, dialect.server_version_info or ()))
    return Condition(place, f"{NAMES[dialect.name]} {version}", there, count or 0, writable)


def _check_pages(connection: Connection, place: str) -> None:
    """Raise StoreError if SQLite's quick check finds damage."""
    found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
    if found != "ok":
        first_line = str(found).splitlines()[-1]
        raise StoreError(
            f"database {place} is damaged ({first_line}); restore a backup, or move it away and tune again"
        )


def _sqlite_url(path: str) -> URL:
    return URL.create("sqlite", database=os.path.realpath(os.path.expanduser(path)))
