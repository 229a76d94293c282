"""The tables of a database: readers take an older or newer schema as it is and migrate nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, FromClause, cast, column, inspect, null, select, table
from sqlalchemy.exc import NoSuchTableError

from autotune.db import migrations
from autotune.db.models import Base, Study, TaxesRow, Trial
from autotune.errors import StoreError


@dataclass(frozen=True)
class Schema:
    """A database's schema, by its differences from the one that this package writes."""

    revision: str
    lacking: frozenset[str] = frozenset()
    """``table.column`` missing from an older schema; read as its default, or NULL."""
    _read_as: dict[type[Base], FromClause] = field(default_factory=dict, init=False, repr=False, compare=False)
    """One for each model: parts of a query that name another one would join the two."""

    @property
    def is_current(self) -> bool:
        """True for the schema that this package writes."""
        return self.revision == migrations.HEAD

    def is_older_than(self, revision: str) -> bool:
        """True for a known schema from before a revision."""
        known = migrations.REVISIONS
        return self.revision in known[: known.index(revision)]

    @cached_property
    def _prefix(self) -> str:
        """The prefix that this schema's table names do not have yet."""
        return "tuning_" if self.is_older_than(migrations.RENAMED) else ""

    def name(self, model: type[Base]) -> str:
        """The model's table name in this schema."""
        name: str = model.__tablename__
        return name.removeprefix(self._prefix)

    def table(self, model: type[Base]) -> FromClause:
        """The model's columns: its table, or, in another schema, a query that fills in what a migration would."""
        own: Any = model.__table__
        if self.is_current:
            return own  # type: ignore[no-any-return]
        if model not in self._read_as:
            lacking = [c for c in own.columns if f"{own.name}.{c.key}" in self.lacking]
            there = table(self.name(model), *(column(c.key, c.type) for c in own.columns if c not in lacking))
            filled = [cast(_default(c), c.type).label(c.key) for c in lacking]
            self._read_as[model] = select(*there.columns, *filled).subquery(own.name)
        return self._read_as[model]


CURRENT = Schema(migrations.HEAD)


def schema_of(connection: Connection, revision: str) -> Schema:
    """The schema of a database with our tables; raises StoreError for a newer one that cannot be read."""
    if revision == migrations.HEAD:
        return CURRENT
    schema = Schema(revision)
    try:
        models = (Study, Trial) if schema.is_older_than(migrations.TAXED) else (Study, Trial, TaxesRow)
        lacking = frozenset().union(*(_lacking(connection, schema, model) for model in models))
    except NoSuchTableError as error:
        raise StoreError(newer(connection, revision)) from error
    if lacking and revision not in migrations.REVISIONS:
        raise StoreError(newer(connection, revision))
    return Schema(revision, lacking)


def _default(own: Any) -> Any:
    return null() if own.server_default is None else own.server_default.arg


def newer(connection: Connection, revision: str) -> str:
    """The message on a schema from a newer version of this package."""
    return (
        f"database {connection.engine.url.database} has schema {revision!r}, of a newer iris-autotune; this one "
        f"knows up to {migrations.HEAD!r}: upgrade iris-autotune, or name another database"
    )


def _lacking(connection: Connection, schema: Schema, model: type[Base]) -> set[str]:
    there = {found["name"] for found in inspect(connection).get_columns(schema.name(model))}
    own: Any = model.__table__
    return {f"{own.name}.{column.key}" for column in own.columns if column.key not in there}
