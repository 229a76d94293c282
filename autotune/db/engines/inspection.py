"""Inspects a database without changing it: kind, tables, damage."""

from __future__ import annotations

import os
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from autotune.db.engines.engine import connect, database_url, place_of
from autotune.db.engines.failures import translated
from autotune.db.engines.schema import has_tables
from autotune.db.models import Trial
from autotune.errors import StoreError

NAMES = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}


@dataclass(frozen=True)
class Condition:
    place: str
    server: str
    """``SQLite 3.45.1`` or ``PostgreSQL 15.18``."""
    has_tables: bool
    trials: int
    writable: bool


def condition(url: str | os.PathLike[str]) -> Condition:
    """Inspect a database; makes nothing. Raises NoDatabase, and StoreError for an unusable one."""
    target = database_url(url)
    place = place_of(target)
    with translated(place):
        engine = connect(target, create=False)
        try:
            with engine.connect() as connection:
                return _condition(connection, place)
        finally:
            engine.dispose()


def _condition(connection: Connection, place: str) -> Condition:
    there = has_tables(connection, place)
    dialect = connection.dialect
    if dialect.name == "sqlite":
        _check_pages(connection, place)
        writable = os.access(place, os.W_OK) and os.access(os.path.dirname(place), os.W_OK)
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
