"""The store: studies, their trials and the winners that the cache serves."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

from sqlalchemy import ColumnElement, Engine, Executable, Select, bindparam, func, select, text
from sqlalchemy.orm import Session

from autotune.db import rows
from autotune.db.engines import WRITING, database_url, intact, open_engine, place_of, translated
from autotune.db.models import Study, Trial
from autotune.db.records import CacheKey, Entry, Provenance, StudyRecord, TrialRecord, Winner
from autotune.environment import default_database_url
from autotune.errors import StoreError


class Store:
    """An open database. Every write is one transaction, on disk when the call returns; nothing measured is deleted.

    Safe to share between threads, and the file between processes.
    """

    def __init__(self, engine: Engine, place: str) -> None:
        """Use ``Store.open`` instead."""
        self._engine = engine
        self._writer = engine.execution_options(**{WRITING: True})
        self.place = place
        """The file's path, or the URL without its password; for messages."""

    @classmethod
    def open(cls, url: str | os.PathLike[str] | None = None, *, create: bool = True) -> Self:
        """Open a database by its URL or path; by default that of ``AUTOTUNE_DB`` or the user's data folder.

        Where there is none yet, one is made, or StoreError raised if ``create`` is false. A file that cannot be
        written opens for reading.
        """
        target = database_url(default_database_url() if url is None else url)
        place = place_of(target)
        with translated(place):
            return cls(open_engine(target, create=create), place)

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def study(self, key: CacheKey, provenance: Provenance, *, seed: int, space_size: int) -> StudyRecord:
        """The study of this key and provenance: the one under way or finished, else a new one.

        A study that is found keeps the seed it was made with.
        """
        for name, value in (("seed", seed), ("space_size", space_size)):
            if not -(2**63) <= value < 2**63:
                raise StoreError(f"{name}={value}: an integer of 64 bits is needed")
        query = _live(key, provenance)
        with self._reading() as session:
            row = session.scalars(query).one_or_none()
        if row is None:
            with self._writing() as session:
                row = session.scalars(query).one_or_none()
                if row is None:
                    row = rows.study_row(key, provenance, seed=seed, space_size=space_size)
                    session.add(row)
        return self._study_record(row)

    def record(self, study_id: int, trial: TrialRecord) -> None:
        """Add one evaluation to a study."""
        with self._writing() as session:
            self._existing(session, study_id)
            session.add(rows.trial_row(study_id, trial))

    def trials(self, study_id: int) -> list[TrialRecord]:
        """A study's evaluations in the order in which they were recorded."""
        with self._reading() as session:
            self._existing(session, study_id)
            found = session.scalars(select(Trial).where(Trial.study_id == study_id).order_by(Trial.id)).all()
        return [self._trial_record(row) for row in found]

    def finish(self, study_id: int, winner: Winner) -> None:
        """Keep the study's winner: from now on the cache serves it. A study that goes on may finish again."""
        with self._writing() as session:
            row = self._existing(session, study_id)
            rows.write_winner(row, winner)
            if row.state == "running":
                row.state = "finished"

    def forget(self, study_id: int) -> None:
        """Supersede a study: the next ``study`` with its key and provenance starts afresh.

        Its trials stay, and so does its winner, which the cache serves until a newer study finishes.
        """
        with self._writing() as session:
            self._existing(session, study_id).state = "superseded"

    def adopt(self, entry: Entry, *, replace: bool = False) -> StudyRecord:
        """Add an entry that was tuned elsewhere: from now on the cache serves it.

        Where there is a study of its key and provenance, StoreError, or with ``replace`` that study is superseded. The
        entry's ``study_id`` and ``imported_at`` are not kept; the store gives its own.
        """
        with self._writing() as session:
            live = session.scalars(_live(entry.key, entry.provenance)).one_or_none()
            if live is not None and not replace:
                raise StoreError(
                    f"database {self.place} has a study of that key and provenance, {live.id}, {live.state}"
                )
            if live is not None:
                live.state = "superseded"
                session.flush()
            row = rows.imported_row(entry)
            session.add(row)
        return self._study_record(row)

    def studies(self) -> list[StudyRecord]:
        """All studies, superseded ones too, in the order in which they were started."""
        with self._reading() as session:
            found = session.scalars(select(Study).order_by(Study.id)).all()
        return [self._study_record(row) for row in found]

    def entries(self, workload: str | None = None, device: str | None = None) -> list[Entry]:
        """The cache: for each key and provenance the winner that came last, newest first. One query."""
        return self._entries(_CACHE, {"workload": workload, "device": device})

    def entry(self, key: CacheKey, provenance: Provenance) -> Entry | None:
        """The cache's entry of exactly this key and provenance."""
        found = self._entries(_finished(*_are(key, provenance)))
        return found[0] if found else None

    def nearest(self, key: CacheKey) -> Entry | None:
        """The entry of the same workload whose key differs in the fewest fields; the newest among equals."""
        return min(self.entries(key.workload), key=lambda entry: len(key.differences(entry.key)), default=None)

    def _entries(self, query: Executable, values: Mapping[str, str | None] | None = None) -> list[Entry]:
        with self._reading() as session:
            found = session.execute(query, values).all()
        entries: dict[tuple[CacheKey, Provenance], Entry] = {}
        for row in found:
            with intact(self.place, Study.__tablename__, row.id):
                entry = rows.entry(row)
            entries.setdefault((entry.key, entry.provenance), entry)
        return list(entries.values())

    def _study_record(self, row: Study) -> StudyRecord:
        with intact(self.place, Study.__tablename__, row.id):
            return rows.study_record(row)

    def _trial_record(self, row: Trial) -> TrialRecord:
        with intact(self.place, Trial.__tablename__, row.id):
            return rows.trial_record(row)

    def _existing(self, session: Session, study_id: int) -> Study:
        row = session.get(Study, study_id)
        if row is None:
            raise StoreError(f"database {self.place} has no study {study_id}")
        return row

    @contextmanager
    def _reading(self) -> Iterator[Session]:
        with translated(self.place), Session(self._engine, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def _writing(self) -> Iterator[Session]:
        with translated(self.place), Session(self._writer, expire_on_commit=False) as session, session.begin():
            yield session


def _finished(*conditions: ColumnElement[bool]) -> Select[Any]:
    """Studies that have a winner, newest first, each with the number of its trials."""
    count = select(func.count()).where(Trial.study_id == Study.id).scalar_subquery()
    came = func.coalesce(Study.imported_at, Study.finished_at)
    query = select(*Study.__table__.columns, count.label("trials")).where(Study.finished_at.is_not(None), *conditions)
    return query.order_by(came.desc(), Study.id.desc())


_CACHE = text(str(_finished(*(func.coalesce(bindparam(c.key), c) == c for c in (Study.workload, Study.device)))))
"""As text: SQLAlchemy takes 2 ms to compile the query, for each engine anew, and the first look-up would wait."""


def _are(key: CacheKey, provenance: Provenance) -> list[ColumnElement[bool]]:
    values = dataclasses.asdict(key) | dataclasses.asdict(provenance)
    return [getattr(Study, name) == value for name, value in values.items()]


def _live(key: CacheKey, provenance: Provenance) -> Select[Study]:
    """The one that is under way or finished; the tables allow no second."""
    return select(Study).where(Study.state != "superseded", *_are(key, provenance))
