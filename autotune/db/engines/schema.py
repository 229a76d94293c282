"""The tables: made whole in a new database; those of another version of this package are refused."""

from __future__ import annotations

from sqlalchemy import Column, Connection, MetaData, Table, Text, insert, inspect, select

from autotune.db.models import Base
from autotune.db.views import make_views
from autotune.errors import StoreError

REVISION = "4"
"""The tables' version; to be raised with every change in ``autotune.db.models``."""

VERSION = Table("iris_autotune_version", MetaData(), Column("version_num", Text, primary_key=True))
"""One row, the revision of the database's tables."""


def revision_of(connection: Connection) -> str | None:
    """The revision of the database's tables; None without ours."""
    if not inspect(connection).has_table(VERSION.name):
        return None
    revision: str | None = connection.scalar(select(VERSION.c.version_num))
    return revision


def has_tables(connection: Connection, place: str) -> bool:
    """True if our tables are there. Raises StoreError for those of another revision."""
    revision = revision_of(connection)
    if revision not in (None, REVISION):
        raise StoreError(
            f"database {place} has tables of revision {revision!r}, this iris-autotune reads {REVISION!r}: export with "
            "the version that made it and import here, or name another database"
        )
    return revision is not None


def make_tables(connection: Connection) -> None:
    """Make tables and views in the connection's transaction, unless another process has made them meanwhile."""
    if revision_of(connection) is None:
        Base.metadata.create_all(connection, checkfirst=False)
        make_views(connection)
        VERSION.create(connection)  # last: SQLite's check passes over much where the newest object is a view
        connection.execute(insert(VERSION).values(version_num=REVISION))
