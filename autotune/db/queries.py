"""The store's queries: studies by identity, and finished studies in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from sqlalchemy import ColumnElement, Executable, Row, Select, bindparam, func, literal_column, select, text

from autotune.db.engines import CURRENT, Schema
from autotune.db.models import KEY, PROVENANCE, Study, Trial
from autotune.db.records import CacheKey, Provenance


def studies(schema: Schema, *conditions: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    """Studies in the order in which they were started."""
    table = schema.table(Study)
    return select(table).where(*conditions).order_by(table.c.id)


def trials(schema: Schema, study_id: int) -> Select[*tuple[Any, ...]]:
    """A study's trials in the order in which they were recorded."""
    table = schema.table(Trial)
    return select(table).where(table.c.study_id == study_id).order_by(table.c.id)


def finished(schema: Schema, *conditions: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    """Studies with a winner, the last finished first, each with its number of trials.

    Times decide only among studies of a schema without the count.
    """
    study, trial = schema.table(Study), schema.table(Trial)
    count = select(func.count()).where(trial.c.study_id == study.c.id).scalar_subquery()
    order = func.coalesce(study.c.finished_order, literal_column("0"))
    came = func.coalesce(study.c.imported_at, study.c.finished_at)
    query = select(study, count.label("trials")).where(study.c.finished_at.is_not(None), *conditions)
    return query.order_by(order.desc(), came.desc(), study.c.id.desc())


def cache(schema: Schema) -> Executable:
    """Finished studies; the parameters ``workload`` and ``device`` filter them unless None."""
    if schema is CURRENT:
        return _CACHE
    return finished(schema, *_chosen(schema))


def newest(found: Iterable[Row[Any]]) -> list[Row[Any]]:
    """The served study of each key and provenance: the live one, else the one started last.

    A superseded study's time of finishing does not matter: another one took its place before.
    """
    rows = list(found)
    served: dict[tuple[Any, ...], Row[Any]] = {}
    for row in rows:
        other = served.setdefault(_identity(row), row)
        if (row.state != "superseded", row.id) > (other.state != "superseded", other.id):
            served[_identity(row)] = row
    chosen = {row.id for row in served.values()}
    return [row for row in rows if row.id in chosen]


def identity(schema: Schema, key: CacheKey, provenance: Provenance) -> list[ColumnElement[bool]]:
    """Conditions for the studies of a key and provenance."""
    values = dataclasses.asdict(key) | dataclasses.asdict(provenance)
    columns = schema.table(Study).c
    return [columns[name] == value for name, value in values.items()]


def live(schema: Schema, key: CacheKey, provenance: Provenance) -> list[ColumnElement[bool]]:
    """Conditions for the running or finished study; the tables allow only one."""
    return [schema.table(Study).c.state != "superseded", *identity(schema, key, provenance)]


def _identity(row: Row[Any]) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in (*KEY, *PROVENANCE))


def _chosen(schema: Schema) -> list[ColumnElement[bool]]:
    columns = schema.table(Study).c
    return [func.coalesce(bindparam(name), columns[name]) == columns[name] for name in ("workload", "device")]


_CACHE = text(str(finished(CURRENT, *_chosen(CURRENT))))
"""As text: SQLAlchemy compiles the query in 2 ms per engine, and the first look-up would wait."""
