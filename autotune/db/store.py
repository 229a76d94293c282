"""The store: studies, their trials and the winners that the cache serves."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal, Self, TypeVar

from sqlalchemy import BigInteger, Executable, Row, cast, func, select, update
from sqlalchemy.orm import Session

from autotune.config import Config
from autotune.db import queries, rows
from autotune.db.engines import Database, database_url, intact, open_database, place_of, translated
from autotune.db.lease import Held, Lease
from autotune.db.models import Attachment, Base, Study, Trial
from autotune.db.records import (
    CacheKey,
    Columns,
    Entry,
    Provenance,
    Standing,
    State,
    StudyRecord,
    TrialRecord,
    Unread,
    Winner,
    entries_of,
)
from autotune.errors import StoreError
from autotune.forks import FORKS_WAIT
from autotune.settings import default_database_url

T = TypeVar("T")

Kind = Literal["taxes", "timeline"]
"""The kinds of attachments."""

LAST_IN_ORDER = 2**63 - 1
"""The highest place in the order of finishing that a column holds."""


class Store:
    """An open database. Every write is one transaction, on disk when the call returns; nothing measured is deleted.

    Threads may share a store, and processes its file. A damaged row is skipped with one warning that names it. The
    store waits for a restarting server and repeats no write.
    """

    def __init__(self, database: Database) -> None:
        """Internal; use ``Store.open``."""
        self._database = database
        self.place = database.place
        """The file's path, or the URL without its password; for messages."""

    @classmethod
    def open(cls, url: str | os.PathLike[str] | None = None, *, create: bool = True) -> Self:
        """Open a database by URL or path; by default ``AUTOTUNE_DB`` or a file in the user's data folder.

        With ``create`` a missing database is made. Without, it opens for reading: NoDatabase if it is missing, and
        nothing is changed. A read-only file opens for reading.
        """
        target = database_url(default_database_url() if url is None else url)
        with FORKS_WAIT, translated(place_of(target)):
            return cls(open_database(target, create=create))

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def study(
        self, key: CacheKey, provenance: Provenance, *, seed: int, space_size: int, origin: str = ""
    ) -> StudyRecord:
        """The study of this key and provenance: the running or finished one, else a new one.

        A study found keeps its own seed and origin; one with a damaged row is superseded by a new one.
        """
        for name, value in (("seed", seed), ("space_size", space_size)):
            if not -(2**63) <= value < 2**63:
                raise StoreError(f"{name}={value}: must be a 64-bit integer")

        def find(session: Session) -> StudyRecord | None:
            return self._studies(session, *queries.live(key, provenance))

        def begin(session: Session) -> StudyRecord:
            found = find(session)
            if found is not None:
                return found
            _supersede(session, key, provenance)
            row = rows.study_row(key, provenance, seed=seed, space_size=space_size, origin=origin)
            session.add(row)
            session.flush()
            return rows.study_record(row)

        return self._database.read(find) or self._database.write(begin)

    def record(self, study_id: int, trial: TrialRecord, lease: Lease | None = None) -> None:
        """Store a trial; with a ``lease`` only while the study is leased so, else StoreError."""
        key = uuid.uuid4().hex

        def add(session: Session) -> None:
            self._leased(session, study_id, lease)
            if session.scalar(select(Trial.id).where(Trial.record_key == key)) is None:
                session.add(rows.trial_row(study_id, trial, key))

        self._database.write(add)

    def trials(self, study_id: int, holds: Callable[[Config], bool] | None = None) -> list[TrialRecord]:
        """A study's evaluations in the order of recording.

        ``holds`` tells if the space that was searched holds a config; a row with another one is damaged.
        """

        def ask(session: Session) -> Sequence[Row[Any]]:
            self._existing(session, study_id)
            return session.execute(queries.trials(study_id)).all()

        def read(row: Row[Any]) -> TrialRecord:
            record = rows.trial_record(row)
            if holds is not None and not holds(record.config):
                raise ValueError(f"{record.config} is not of the space that was searched")
            return record

        return self._intact(Trial, self._database.read(ask), read)

    def attach(self, study_id: int, kind: Kind, measured: str) -> None:
        """Store what was measured of a study's problem, as JSON; earlier ones stay."""
        key = uuid.uuid4().hex

        def add(session: Session) -> None:
            self._existing(session, study_id)
            if session.scalar(select(Attachment.id).where(Attachment.record_key == key)) is None:
                row = Attachment(study_id=study_id, kind=kind, measured=measured, created_at=rows.now(), record_key=key)
                session.add(row)

        self._database.write(add)

    def attached(self, study_id: int, kind: Kind) -> str | None:
        """The last of a kind that was attached to a study, as JSON; None if there is none."""
        query = select(Attachment.id, Attachment.measured).where(Attachment.study_id == study_id)
        query = query.where(Attachment.kind == kind).order_by(Attachment.id.desc()).limit(1)
        found = self._database.read(lambda session: session.execute(query).all())
        return next(iter(self._intact(Attachment, found, lambda row: rows.words(row.measured))), None)

    def finish(self, study_id: int, winner: Winner, lease: Lease | None = None) -> None:
        """Store the study's winner; the cache serves it from now on. A study that continues may finish again. With a
        ``lease`` only while the study is leased so, else StoreError.

        A study superseded meanwhile keeps its winner too, but its successor is served.
        """

        def finish(session: Session) -> None:
            row = self._leased(session, study_id, lease)
            rows.write_winner(row, winner)
            row.finished_order = _next_in_order(session)
            if row.state == "running":
                row.state = "finished"

        self._database.write(finish)

    def forget(self, study_id: int) -> None:
        """Supersede a study: the next ``study`` with its key and provenance starts afresh.

        Its trials and its winner stay; the cache serves the winner until a newer study finishes.
        """

        def forget(session: Session) -> None:
            self._existing(session, study_id).state = "superseded"

        self._database.write(forget)

    def adopt(self, entries: Sequence[tuple[Entry, bool]]) -> list[StudyRecord]:
        """Add entries tuned elsewhere, all of them, or none if one cannot be; the cache serves them from now on.

        If a study has an entry's key and provenance: StoreError, or where true is beside the entry that study is
        superseded. The store sets its own ``study_id`` and ``imported_at``.
        """
        keys = [uuid.uuid4().hex for _ in entries]

        def adopt(session: Session) -> list[Study]:
            if keys and session.scalar(select(Study.id).where(Study.record_key == keys[0])) is not None:
                found = {
                    row.record_key: row for row in session.scalars(select(Study).where(Study.record_key.in_(keys)))
                }
                return [found[key] for key in keys]
            first = _next_in_order(session)  # asked for once: it reads every study
            return [
                self._adopted(session, *each, key, min(first + place, LAST_IN_ORDER))
                for place, (each, key) in enumerate(zip(entries, keys, strict=True))
            ]

        return [rows.study_record(row) for row in self._database.write(adopt)]

    def names(self) -> set[str]:
        """The names of all studies' workloads and kernels."""
        query = select(Study.workload).distinct()
        found = self._database.read(lambda session: session.scalars(query).all())
        return {name for name in found if isinstance(name, str)}  # a damaged one may be bytes

    def studies(self, state: State | None = None, *, number: int | None = None) -> list[StudyRecord]:
        """All studies, superseded ones included, in the order of their start; only those of a ``state``, or the one of
        a ``number``, if given.
        """
        wanted = [Study.state == state] if state is not None else []
        wanted += [Study.id == number] if number is not None else []
        query = queries.studies(*wanted)
        found = self._database.read(lambda session: session.execute(query).all())
        return self._intact(Study, found, rows.study_record)

    def entries(self, workload: str | None = None, device: str | None = None) -> list[Entry]:
        """The cache: per key and provenance the live study's winner, else the newest superseded one's.

        The last finished come first, by the database's own count. One query.
        """
        return list(entries_of(self.unread(workload, device)))

    def unread(self, workload: str | None = None, device: str | None = None) -> list[Unread]:
        """``entries``, of which a damaged one is known only once it is read."""
        return self._unread(queries.CACHE, {"workload": workload, "device": device})

    def history(self) -> list[Entry]:
        """Every finished study, superseded ones included, the last finished first."""
        query = queries.finished()
        found = self._database.read(lambda session: session.execute(query).all())
        return self._intact(Study, queries.in_order(found), rows.entry)

    def entry(self, key: CacheKey, provenance: Provenance) -> Entry | None:
        """The cache entry of exactly this key and provenance."""
        found = self._unread(queries.finished(*queries.identity(key, provenance)), None)
        return next(entries_of(found), None)

    def nearest(self, key: CacheKey) -> Entry | None:
        """The entry of the same workload whose key differs in the fewest fields; the newest of several."""
        return min(self.entries(key.workload), key=lambda entry: len(key.differences(entry.key)), default=None)

    def standings(self) -> dict[Columns, Standing]:
        """The studies that none has superseded, by the columns of their key and provenance, in the order of start."""
        found = self._database.read(lambda session: session.execute(queries.standings()).all())
        return dict(self._intact(Study, found, rows.standing))

    def fail(self, key: CacheKey, provenance: Provenance, failure: str) -> None:
        """Note on the unfinished study, if there is one, why a fleet's host found no winner."""
        query = update(Study).where(*queries.live(key, provenance), Study.state == "running")
        query = query.values(failure=rows.encodable(failure))
        self._database.write(lambda session: session.execute(query))

    def take_lease(self, study_id: int, lease: Lease, over: Held | None = None) -> Held | None:
        """Claim a study for tuning: None if ``lease`` holds it now, else the present holder.

        ``over`` is the lease of a dead holder: it is taken over if its heartbeat has not moved since.
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
        """Count a lease's heartbeat up; False if the study has another lease now. Does not wait for a restarting
        server.
        """
        held = update(Study).where(Study.id == study_id, Study.lease == lease.text)
        query = held.values(heartbeat=func.coalesce(Study.heartbeat, 0) + 1).returning(Study.id)
        return self._database.write(lambda session: session.scalar(query), patient=False) is not None

    def release(self, study_id: int, lease: Lease) -> None:
        """End a lease if it is still this one. Does not wait for a restarting server."""
        query = update(Study).where(Study.id == study_id, Study.lease == lease.text).values(lease=None)
        self._database.write(lambda session: session.execute(query), patient=False)

    def _adopted(self, session: Session, entry: Entry, replace: bool, record_key: str, order: int) -> Study:
        live = self._studies(session, *queries.live(entry.key, entry.provenance))
        if live is not None and not replace:
            raise StoreError(
                f"database {self.place} already has study {live.id} ({live.state}) of that key and provenance"
            )
        _supersede(session, entry.key, entry.provenance)
        row = rows.imported_row(entry)
        row.record_key, row.finished_order = record_key, order
        session.add(row)
        session.flush()
        return row

    def _unread(self, query: Executable, values: dict[str, str | None] | None) -> list[Unread]:
        found = self._database.read(lambda session: session.execute(query, values).all())

        def read(row: Row[Any]) -> Entry | None:
            return intact(self.place, Study.__tablename__, row.id, lambda: rows.entry(row))

        return [Unread(columns, row, read) for columns, row in queries.newest(found)]

    def _studies(self, session: Session, *conditions: Any) -> StudyRecord | None:
        """The last study that meets the conditions; None if its row is damaged."""
        found = session.execute(queries.studies(*conditions)).all()
        return next(iter(self._intact(Study, found[-1:], rows.study_record)), None)

    def _intact(self, table: type[Base], found: Iterable[Any], read: Callable[[Any], T]) -> list[T]:
        """The rows as records; damaged ones are left out."""
        name = table.__tablename__
        records = (intact(self.place, name, row.id, partial(read, row)) for row in found)
        return [record for record in records if record is not None]

    def _leased(self, session: Session, study_id: int, lease: Lease | None) -> Study:
        """The study; StoreError if a ``lease`` is given and is not its own any more."""
        row = self._existing(session, study_id)
        if lease is not None and row.lease != lease.text:
            holder = "another process" if row.lease is None else Held(row.lease, 0)
            raise StoreError(
                f"database {self.place}: {holder} took study {study_id} over, because this process's heartbeat had "
                "stopped; its result counts, and what was measured here before is kept. Run the same command again to "
                "wait for it"
            )
        return row

    def _existing(self, session: Session, study_id: int) -> Study:
        row = session.get(Study, study_id)
        if row is None:
            raise StoreError(f"database {self.place} has no study {study_id}")
        return row


def _supersede(session: Session, key: CacheKey, provenance: Provenance) -> None:
    """Supersede the live study of an identity, even if its row is damaged."""
    session.execute(update(Study).where(*queries.live(key, provenance)).values(state="superseded"))


def _next_in_order(session: Session) -> int:
    """One more than the highest so far; writers take turns, so no two get the same."""
    highest = session.scalar(select(func.max(cast(Study.finished_order, BigInteger)))) or 0  # a damaged one may be text
    return min(highest + 1, LAST_IN_ORDER)
