"""The store: studies, their trials and the winners that the cache serves."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from typing import Any, Self

from sqlalchemy import BigInteger, Executable, Row, cast, func, select, update
from sqlalchemy.orm import Session

from autotune.db import queries, rows
from autotune.db.engines import CURRENT, Database, database_url, intact, open_database, place_of, translated
from autotune.db.lease import Held, Lease
from autotune.db.models import Study, Trial
from autotune.db.records import CacheKey, Entry, Provenance, StudyRecord, TrialRecord, Winner
from autotune.errors import StoreError
from autotune.settings import default_database_url


class Store:
    """An open database. Every write is one transaction, on disk when the call returns; nothing measured is deleted.

    Safe to share between threads, and the file between processes. A damaged row is left out of what is read, with one
    warning that names it. A server that restarts meanwhile is waited for, and no write is made twice.
    """

    def __init__(self, database: Database) -> None:
        """Use ``Store.open`` instead."""
        self._database = database
        self.place = database.place
        """The file's path, or the URL without its password; for messages."""

    @classmethod
    def open(cls, url: str | os.PathLike[str] | None = None, *, create: bool = True) -> Self:
        """Open a database by its URL or path; by default that of ``AUTOTUNE_DB`` or the user's data folder.

        With ``create`` one is made where there is none yet, and one of an older version is brought up to date. Without,
        it is for reading: NoDatabase where there is none, and nothing is changed. A file that cannot be written opens
        for reading.
        """
        target = database_url(default_database_url() if url is None else url)
        with translated(place_of(target)):
            return cls(open_database(target, create=create))

    def close(self) -> None:
        """Let go of the database."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def study(self, key: CacheKey, provenance: Provenance, *, seed: int, space_size: int) -> StudyRecord:
        """The study of this key and provenance: the one under way or finished, else a new one.

        A study that is found keeps the seed it was made with; one whose row is damaged is superseded by a new one.
        """
        for name, value in (("seed", seed), ("space_size", space_size)):
            if not -(2**63) <= value < 2**63:
                raise StoreError(f"{name}={value}: an integer of 64 bits is needed")

        def find(session: Session) -> StudyRecord | None:
            return self._studies(session, *queries.live(self._database.schema, key, provenance))

        def begin(session: Session) -> StudyRecord:
            found = find(session)
            if found is not None:
                return found
            _supersede(session, key, provenance)
            row = rows.study_row(key, provenance, seed=seed, space_size=space_size)
            session.add(row)
            session.flush()
            return rows.study_record(row)

        return self._database.read(find) or self._database.write(begin)

    def record(self, study_id: int, trial: TrialRecord) -> None:
        """Add one evaluation to a study."""
        key = uuid.uuid4().hex

        def add(session: Session) -> None:
            self._existing(session, study_id)
            if session.scalar(select(Trial.id).where(Trial.record_key == key)) is None:
                session.add(rows.trial_row(study_id, trial, key))

        self._database.write(add)

    def trials(self, study_id: int) -> list[TrialRecord]:
        """A study's evaluations in the order in which they were recorded."""

        def ask(session: Session) -> Sequence[Row[Any]]:
            schema = self._database.schema
            ids = schema.table(Study).c.id
            if session.scalar(select(ids).where(ids == study_id)) is None:
                raise StoreError(self._no_study(study_id))
            return session.execute(queries.trials(schema, study_id)).all()

        records = (self._intact(Trial, row, rows.trial_record) for row in self._database.read(ask))
        return [record for record in records if record is not None]

    def finish(self, study_id: int, winner: Winner) -> None:
        """Keep the study's winner: from now on the cache serves it. A study that goes on may finish again.

        One that was superseded meanwhile keeps its winner too, but is not served over the one in its place.
        """

        def finish(session: Session) -> None:
            row = self._existing(session, study_id)
            rows.write_winner(row, winner)
            row.finished_order = _next_in_order(session)
            if row.state == "running":
                row.state = "finished"

        self._database.write(finish)

    def forget(self, study_id: int) -> None:
        """Supersede a study: the next ``study`` with its key and provenance starts afresh.

        Its trials stay, and so does its winner, which the cache serves until a newer study finishes.
        """

        def forget(session: Session) -> None:
            self._existing(session, study_id).state = "superseded"

        self._database.write(forget)

    def adopt(self, entry: Entry, *, replace: bool = False) -> StudyRecord:
        """Add an entry that was tuned elsewhere: from now on the cache serves it.

        Where there is a study of its key and provenance, StoreError, or with ``replace`` that study is superseded. The
        entry's ``study_id`` and ``imported_at`` are not kept; the store gives its own.
        """
        [study] = self.adopt_all([(entry, replace)])
        return study

    def adopt_all(self, entries: Sequence[tuple[Entry, bool]]) -> list[StudyRecord]:
        """Adopt several, each with its ``replace``: all of them, or where one cannot be adopted none."""
        keys = [uuid.uuid4().hex for _ in entries]

        def adopt(session: Session) -> list[Study]:
            if keys and session.scalar(select(Study.id).where(Study.record_key == keys[0])) is not None:
                found = {
                    row.record_key: row for row in session.scalars(select(Study).where(Study.record_key.in_(keys)))
                }
                return [found[key] for key in keys]
            return [self._adopted(session, *each, key) for each, key in zip(entries, keys, strict=True)]

        return [rows.study_record(row) for row in self._database.write(adopt)]

    def studies(self) -> list[StudyRecord]:
        """All studies, superseded ones too, in the order in which they were started."""
        query = queries.studies(self._database.schema)
        found = self._database.read(lambda session: session.execute(query).all())
        records = (self._intact(Study, row, rows.study_record) for row in found)
        return [record for record in records if record is not None]

    def entries(self, workload: str | None = None, device: str | None = None) -> list[Entry]:
        """The cache: for each key and provenance the live study's winner, else that of the newest superseded one.

        The last to finish come first, by the database's own count. One query.
        """
        return self._entries(queries.cache(self._database.schema), {"workload": workload, "device": device})

    def entry(self, key: CacheKey, provenance: Provenance) -> Entry | None:
        """The cache's entry of exactly this key and provenance."""
        schema = self._database.schema
        found = self._entries(queries.finished(schema, *queries.identity(schema, key, provenance)), None)
        return found[0] if found else None

    def nearest(self, key: CacheKey) -> Entry | None:
        """The entry of the same workload whose key differs in the fewest fields; the newest among equals."""
        return min(self.entries(key.workload), key=lambda entry: len(key.differences(entry.key)), default=None)

    def take_lease(self, study_id: int, lease: Lease, over: Held | None = None) -> Held | None:
        """Say that a study is being tuned: None where it is ``lease`` that holds it from now on, else who does.

        ``over`` is a lease whose holder is gone: it is taken where its heartbeat is still what was seen then.
        """

        def take(session: Session) -> Held | None:
            row = self._existing(session, study_id)
            held = Held(row.lease, row.heartbeat or 0) if row.lease is not None else None
            if held is not None and held != over and held.text != lease.text:
                return held
            row.lease, row.heartbeat = lease.text, 1
            return None

        return self._database.write(take)

    def beat(self, study_id: int, lease: Lease) -> bool:
        """Count a lease's heartbeat up; False where it is another's by now. Waits for no restarting server."""
        held = update(Study).where(Study.id == study_id, Study.lease == lease.text)
        query = held.values(heartbeat=func.coalesce(Study.heartbeat, 0) + 1).returning(Study.id)
        return self._database.write(lambda session: session.scalar(query), patient=False) is not None

    def release(self, study_id: int, lease: Lease) -> None:
        """End a lease, where it is still this one. Waits for no restarting server."""
        query = update(Study).where(Study.id == study_id, Study.lease == lease.text).values(lease=None)
        self._database.write(lambda session: session.execute(query), patient=False)

    def _adopted(self, session: Session, entry: Entry, replace: bool, record_key: str) -> Study:
        live = self._studies(session, *queries.live(CURRENT, entry.key, entry.provenance))
        if live is not None and not replace:
            raise StoreError(f"database {self.place} has a study of that key and provenance, {live.id}, {live.state}")
        _supersede(session, entry.key, entry.provenance)
        row = rows.imported_row(entry)
        row.record_key, row.finished_order = record_key, _next_in_order(session)
        session.add(row)
        session.flush()
        return row

    def _entries(self, query: Executable, values: dict[str, str | None] | None) -> list[Entry]:
        found = self._database.read(lambda session: session.execute(query, values).all())
        entries = (self._intact(Study, row, rows.entry) for row in queries.newest(found))
        return [entry for entry in entries if entry is not None]

    def _studies(self, session: Session, *conditions: Any) -> StudyRecord | None:
        """The last of the studies that meet the conditions; None where its row is damaged, too."""
        found = session.execute(queries.studies(self._database.schema, *conditions)).all()
        return self._intact(Study, found[-1], rows.study_record) if found else None

    def _intact(self, table: Any, row: Row[Any], read: Any) -> Any:
        return intact(self.place, self._database.schema.name(table), row.id, lambda: read(row))

    def _existing(self, session: Session, study_id: int) -> Study:
        row = session.get(Study, study_id)
        if row is None:
            raise StoreError(self._no_study(study_id))
        return row

    def _no_study(self, study_id: int) -> str:
        return f"database {self.place} has no study {study_id}"


def _supersede(session: Session, key: CacheKey, provenance: Provenance) -> None:
    """The live study of an identity, were its row damaged."""
    session.execute(update(Study).where(*queries.live(CURRENT, key, provenance)).values(state="superseded"))


def _next_in_order(session: Session) -> int:
    """One more than any study has; writers take turns, so no two get the same."""
    highest = session.scalar(select(func.max(cast(Study.finished_order, BigInteger)))) or 0  # a damaged one may be text
    return min(highest, 2**63 - 2) + 1
