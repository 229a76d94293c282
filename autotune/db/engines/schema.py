"""The columns that a database has: reading takes an older or newer version's schema as it is, and migrates nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, inspect, literal_column

from autotune.db import migrations
from autotune.db.models import Base, Study, Trial
from autotune.errors import StoreError


@dataclass(frozen=True)
class Schema:
    """A database's schema, as far as it is not the one that this package writes."""

    revision: str
    lacking: frozenset[str] = frozenset()
    """``table.column`` of this package's that an older schema does not have; they read as their default, or NULL."""

    @property
    def is_current(self) -> bool:
        """True for the schema that this package writes."""
        return self.revision == migrations.HEAD

    def columns(self, table: type[Base]) -> list[ColumnElement[Any]]:
        """A table's columns, and in the place of those that the schema lacks what a migration would fill in."""
        return [
            _default(column).label(column.key) if f"{column.table}.{column.key}" in self.lacking else column
            for column in table.__table__.columns
        ]


CURRENT = Schema(migrations.HEAD)


def schema_of(connection: Connection, revision: str) -> Schema:
    """The schema of a database that has tables of ours; raises StoreError where a newer one cannot be read."""
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
    """What to say of a schema that is of a newer version of this package."""
    return (
        f"database {connection.engine.url.database} has schema {revision!r}, of a newer iris-autotune; this one "
        f"knows up to {migrations.HEAD!r}: upgrade iris-autotune, or name another database"
    )


def _lacking(connection: Connection, table: Table) -> set[str]:
    there = {column["name"] for column in inspect(connection).get_columns(table.name)}
    return {f"{table.name}.{column.key}" for column in table.columns if column.key not in there}
