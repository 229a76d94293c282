"""The columns of a database: readers take an older or newer schema as it is and migrate nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, inspect, literal_column

from autotune.db import migrations
from autotune.db.models import Base, Study, Trial
from autotune.errors import StoreError


@dataclass(frozen=True)
class Schema:
    """A database's schema, by its differences from the one that this package writes."""

    revision: str
    lacking: frozenset[str] = frozenset()
    """``table.column`` missing from an older schema; read as its default, or NULL."""

    @property
    def is_current(self) -> bool:
        """True for the schema that this package writes."""
        return self.revision == migrations.HEAD

    def columns(self, table: type[Base]) -> list[ColumnElement[Any]]:
        """A table's columns; for missing ones, the value that a migration would fill in."""
        return [
            _default(column).label(column.key) if f"{column.table}.{column.key}" in self.lacking else column
            for column in table.__table__.columns
        ]


CURRENT = Schema(migrations.HEAD)


def schema_of(connection: Connection, revision: str) -> Schema:
    """The schema of a database with our tables; raises StoreError for a newer one that cannot be read."""
    if revision == migrations.HEAD:
        return CURRENT
    lacking = frozenset().union(*(_lacking(connection, table.__table__) for table in (Study, Trial)))  # type: ignore[arg-type]
    if lacking and revision not in migrations.REVISIONS:
        raise StoreError(newer(connection, revision))
    return Schema(revision, lacking)


def _default(column: ColumnElement[Any]) -> ColumnElement[Any]:
    default = getattr(column, "server_default", None)
    return literal_column("NULL" if default is None else f"'{default.arg}'")


def newer(connection: Connection, revision: str) -> str:
    """The message on a schema from a newer version of this package."""
    return (
        f"database {connection.engine.url.database} has schema {revision!r}, of a newer iris-autotune; this one "
        f"knows up to {migrations.HEAD!r}: upgrade iris-autotune, or name another database"
    )


def _lacking(connection: Connection, table: Table) -> set[str]:
    there = {column["name"] for column in inspect(connection).get_columns(table.name)}
    return {f"{table.name}.{column.key}" for column in table.columns if column.key not in there}
