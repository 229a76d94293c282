"""From a URL or a path to a connected database whose schema is the one this package knows."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from sqlalchemy import URL, Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from autotune.db import migrations
from autotune.db.sqlite import IMMEDIATE, locked, sqlite_engine
from autotune.errors import NoDatabase, StoreError

ALLOWED = "allowed are a file's path, sqlite:///FILE, or a SQLAlchemy URL such as postgresql://HOST/NAME"


def database_url(given: str | os.PathLike[str]) -> URL:
    """The URL of a URL or a plain path; raises StoreError for one that cannot be meant."""
    text = os.fspath(given)
    if "://" not in text:
        if not text or "\0" in text or text.startswith(("sqlite:", ":memory:")):
            raise StoreError(f"database {text!r}: {ALLOWED}")
        return _sqlite_url(text)
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:  # the text may hold a password
        raise StoreError(f"database {text.partition('://')[0]}://… is no URL that can be read; {ALLOWED}") from error
    if url.get_backend_name() != "sqlite":
        return url
    if url.drivername not in ("sqlite", "sqlite+pysqlite") or url.query or url.host:
        raise StoreError(f"database {text!r}: a SQLite database is given as sqlite:///FILE, with nothing added")
    if url.database in (None, "", ":memory:"):
        raise StoreError(f"database {text!r} would be lost at exit; name a file: sqlite:///FILE")
    return _sqlite_url(str(url.database))


def open_engine(url: URL, *, create: bool) -> Engine:
    """Connect, and bring the schema to this package's revision; at that revision already, alembic is not loaded."""
    guard: AbstractContextManager[None]
    if url.get_backend_name() == "sqlite":
        path = Path(str(url.database))
        engine = sqlite_engine(path, create=create)
        guard = locked(path)
    else:
        engine = _server_engine(url)
        guard = nullcontext()
    try:
        if _revision(engine, create=create) != migrations.HEAD:
            with guard, engine.execution_options(**{IMMEDIATE: True}).begin() as connection:
                migrations.upgrade(connection)
    except BaseException:
        engine.dispose()
        raise
    return engine


def _sqlite_url(path: str) -> URL:
    return URL.create("sqlite", database=os.path.realpath(os.path.expanduser(path)))


def _server_engine(url: URL) -> Engine:
    try:
        engine = create_engine(url)
    except NoSuchModuleError as error:
        raise StoreError(f"database scheme {url.drivername!r} is unknown; {ALLOWED}") from error
    except ImportError as error:
        raise StoreError(f"database {url} needs the Python package {error.name!r}; install it") from error
    if engine.dialect.is_async:
        raise StoreError(f"database {url}: {url.drivername!r} is an asynchronous driver; name one that is not")
    return engine


def _revision(engine: Engine, *, create: bool) -> str | None:
    with engine.connect() as connection:
        revision = migrations.current(connection)
    if revision is None and not create and engine.dialect.name != "sqlite":
        raise NoDatabase(f"there are no tables of ours in {engine.url} yet; tune something to make them")
    if revision is not None and revision not in migrations.REVISIONS:
        raise StoreError(
            f"database {engine.url.database} has schema {revision!r}, of a newer iris-autotune; this one knows up to "
            f"{migrations.HEAD!r}: upgrade iris-autotune, or name another file"
        )
    return revision
