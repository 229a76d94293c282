"""The store's queries: studies by identity, and finished studies in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, bindparam, func, literal_column, select, text

from autotune.db.models import Study, Trial
from autotune.db.records import KEY, PROVENANCE, CacheKey, Columns, Provenance


def studies(*conditions: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    """Studies in the order in which they were started."""
    table = Study.__table__
    return select(table).where(*conditions).order_by(table.c.id)


def trials(study_id: int) -> Select[*tuple[Any, ...]]:
    """A study's trials in the order in which they were recorded."""
    table = Trial.__table__
    return select(table).where(table.c.study_id == study_id).order_by(table.c.id)


def finished(*conditions: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    """Studies with a winner, each with its number of trials and its ``place``: 1 is the one finished last.

    The rows come in any order, see ``in_order``: SQLite would carry all their texts through the sort, which takes as
    long as to read them.
    """
    study, trial = Study.__table__, Trial.__table__
    count = select(func.count()).where(trial.c.study_id == study.c.id).scalar_subquery()
    order = func.coalesce(study.c.finished_order, literal_column("0"))  # a damaged one may be NULL
    place = func.row_number().over(order_by=(order.desc(), study.c.id.desc())).label("place")
    placed = select(study.c.id, place).where(study.c.finished_at.is_not(None), *conditions).subquery("placed")
    return select(study, count.label("trials"), placed.c.place).join(placed, placed.c.id == study.c.id)


def in_order(found: Sequence[Row[Any]]) -> list[Row[Any]]:
    """``finished`` studies, the last finished first."""
    return sorted(found, key=attrgetter("place"))


def newest(found: Sequence[Row[Any]]) -> list[tuple[Columns, Row[Any]]]:
    """The served study of each key and provenance, behind their columns: the live one, else the one started last. The
    last finished come first.

    A superseded study's time of finishing does not matter: another one took its place before.
    """
    if not found:
        return []
    columns = itemgetter(*map(found[0]._fields.index, (*KEY, *PROVENANCE)))
    served: dict[Columns, Row[Any]] = {}
    for row in found:
        other = served.setdefault(columns(row), row)
        if row is not other and (row.state != "superseded", row.id) > (other.state != "superseded", other.id):
            served[columns(row)] = row
    return sorted(served.items(), key=lambda item: item[1].place)


def identity(key: CacheKey, provenance: Provenance) -> list[ColumnElement[bool]]:
    """Conditions for the studies of a key and provenance."""
    values = dataclasses.asdict(key) | dataclasses.asdict(provenance)
    columns = Study.__table__.c
    return [columns[name] == value for name, value in values.items()]


def live(key: CacheKey, provenance: Provenance) -> list[ColumnElement[bool]]:
    """Conditions for the running or finished study; the tables allow only one."""
    return [Study.__table__.c.state != "superseded", *identity(key, provenance)]


def standings() -> Select[*tuple[Any, ...]]:
    columns = Study.__table__.c
    names = (*KEY, *PROVENANCE, "id", "state", "winner_verified", "lease", "heartbeat", "failure")
    return select(*(columns[name] for name in names)).where(columns.state != "superseded").order_by(columns.id)


def _chosen() -> list[ColumnElement[bool]]:
    columns = Study.__table__.c
    return [func.coalesce(bindparam(name), columns[name]) == columns[name] for name in ("workload", "device")]


CACHE = text(str(finished(*_chosen())))
"""Finished studies; the parameters ``workload`` and ``device`` filter them unless None.

As text: SQLAlchemy compiles the query in 2 ms per engine, and the first look-up would wait.
"""
