"""A fleet's list in the database: problems are wanted, claimed by hosts, and done, failed, lost or stopped.

Every step is one transaction, so a process may die between any two: what it had claimed is found again by its lease.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar, get_args

from sqlalchemy import ColumnElement, and_, case, delete, exists, func, insert, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from autotune.db import fleet_rows
from autotune.db.engines import Database, intact
from autotune.db.fleet_records import (
    Attempt,
    AttemptState,
    Claim,
    Counts,
    Finding,
    HostRecord,
    Kind,
    Listed,
    ProblemState,
    Snapshot,
    UnderWay,
    Wanted,
)
from autotune.db.lease import Held, Lease
from autotune.db.models import KEY, KIND, PROVENANCE, FleetAttempt, FleetFinding, FleetHost, FleetProblem
from autotune.db.records import CacheKey, Provenance
from autotune.db.rows import now
from autotune.text import visible

LOG = logging.getLogger("autotune")

HOSTS_PER_PROBLEM = 2
"""A problem that failed on this many hosts is set aside: the second one is the other host it was retried on."""

MOST_LOST = 5
"""Attempts of one problem that may be lost, before it is taken to be what kills its processes."""

IN_A_ROW = 3
"""Failures in a row, of problems that other hosts pass, after which a host is set aside."""

ROWS_AT_ONCE = 500

T = TypeVar("T")


class Fleet:
    """The fleet's tables of an open database. Use ``Store.fleet``.

    A damaged row, or one in a state of a later version, is left alone, with one warning that names it.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._unknown: set[str] = set()
        """States that have been warned of."""

    def add(self, problems: Iterable[Wanted], *, done: Collection[tuple[CacheKey, Provenance]] = ()) -> int:
        """Put problems on the list and return how many are new; those there already keep their state.

        A new one whose identity is among ``done`` is done at once. Options are renewed where it is not under way.
        """
        rows = [_new_row(each, each.identity in done) for each in problems]

        def put(session: Session) -> int:
            before = _count(session)
            for first in range(0, len(rows), ROWS_AT_ONCE):
                session.execute(_upsert(session), rows[first : first + ROWS_AT_ONCE])
            return _count(session) - before

        return self._database.write(put)

    def resume(self) -> None:
        """Want again what was stopped."""
        self._move({"stopped": "wanted", "stopping": "running"})

    def stop(self) -> None:
        """Hand out nothing more, and ask those who are at work to stop."""
        self._move({"wanted": "stopped", "running": "stopping"})

    def forgive(self) -> None:
        """Want again what was set aside, problems and hosts; failures so far no longer count."""

        def work(session: Session) -> None:
            ended = FleetAttempt.state.in_(("failed", "lost"))
            session.execute(update(FleetAttempt).where(ended).values(forgiven=1))
            session.execute(update(FleetProblem).where(FleetProblem.state == "failed").values(state="wanted"))
            session.execute(update(FleetHost).values(set_aside=""))

        self._database.write(work)

    def register(self, host: HostRecord) -> HostRecord:
        """Store a host's examination in place of its last one; returns the host, set aside if it was before."""

        def put(session: Session) -> HostRecord:
            row = session.scalar(select(FleetHost).where(FleetHost.name == host.name))
            if row is None:
                row = FleetHost(name=host.name, set_aside=host.set_aside)
                session.add(row)
            for name, value in dataclasses.asdict(host.kind).items():
                setattr(row, name, value)
            row.gpus, row.broken, row.examined_at = host.gpus, host.broken, now()
            session.flush()
            session.execute(delete(FleetFinding).where(FleetFinding.host_id == row.id))
            findings = [{"host_id": row.id, **dataclasses.asdict(each)} for each in host.findings]
            if findings:
                session.execute(insert(FleetFinding), findings)
            if self._intact(row, fleet_rows.host, ()) is None:
                row.set_aside = host.set_aside
            return dataclasses.replace(host, set_aside=row.set_aside)

        return self._database.write(put)

    def doable(self, hosts: Collection[str], limit: int, besides: Collection[int] = ()) -> list[Listed]:
        """Wanted problems that one of these hosts can take, the widest first, without those in ``besides``."""
        failed = exists().where(
            *_counting("failed"), FleetAttempt.problem_id == FleetProblem.id, FleetAttempt.host == FleetHost.name
        )
        there = exists().where(
            FleetHost.name.in_(hosts), FleetHost.broken == "", FleetHost.set_aside == "",
            FleetHost.gpus >= FleetProblem.world_size, ~failed.correlate(FleetProblem, FleetHost),
            *(getattr(FleetHost, name) == getattr(FleetProblem, name) for name in KIND),
        )  # fmt: skip
        wanted = (FleetProblem.state == "wanted", FleetProblem.id.not_in(besides), there.correlate(FleetProblem))
        query = select(FleetProblem).where(*wanted)
        query = query.order_by(FleetProblem.turn, FleetProblem.id).limit(limit)

        def ask(session: Session) -> list[Listed]:
            rows = session.scalars(query).all()
            failed_on = _failures(session, [row.id for row in rows])
            return self._listed(rows, failed_on)

        return self._database.read(ask)

    def claim(self, host: str, lease: Lease, problem: int | None = None) -> Claim | None:
        """Take on a problem, the named one or the widest that the host takes; None if there is none for it now.

        A host that is set aside, broken or unknown gets nothing, nor one that failed the problem before.
        """

        def take(session: Session) -> Claim | None:
            before = session.scalar(select(FleetAttempt).where(FleetAttempt.lease == lease.text).with_for_update())
            if before is not None:  # this very call, whose acknowledgement was lost
                return self._claim(session, before) if before.state == "running" else None
            at = session.scalar(select(FleetHost).where(FleetHost.name == host))
            if at is None or at.broken or at.set_aside:
                return None
            row = self._next(session, at, problem)
            if row is None:
                return None
            row.state = "running"
            attempt = FleetAttempt(
                problem_id=row.id, host=host, state="running", lease=lease.text, heartbeat=1, started_at=now(),
            )  # fmt: skip
            session.add(attempt)
            session.flush()
            return self._claim(session, attempt)

        return self._database.write(take, alone=False)

    def beat(self, attempt: int, lease: Lease, progress: str) -> ProblemState | None:
        """Count an attempt's heartbeat up and tell how it goes on.

        Returns the problem's state; None if the attempt was taken to be lost. Does not wait for a restarting server.
        """
        ours = (FleetAttempt.id == attempt, FleetAttempt.lease == lease.text, FleetAttempt.state == "running")
        query = update(FleetAttempt).where(*ours)
        query = query.values(heartbeat=FleetAttempt.heartbeat + 1, progress=progress[:500])

        def work(session: Session) -> Any:
            problem = session.scalar(query.returning(FleetAttempt.problem_id))
            return session.scalar(select(FleetProblem.state).where(FleetProblem.id == problem))

        found: ProblemState | None = self._database.write(work, patient=False, alone=False)
        return found

    def end(self, attempt: int, lease: Lease, state: AttemptState, reason: str = "", seconds: float = 0.0) -> None:
        """End an attempt. One that was taken to be lost may still come home with its problem done."""

        def work(session: Session) -> None:
            row, problem = _locked(session, attempt)
            late = row.state == "lost" and state == "done"
            if row.lease != lease.text or (row.state != "running" and not late):
                return
            row.state, row.reason, row.ended_at, row.seconds = state, reason, now(), seconds
            row.forgiven = 0  # it may have been, while it was lost: what comes home late counts
            if not late or problem.state in ("wanted", "stopped", "failed"):
                _settle(session, problem, row)

        self._database.write(work, alone=False)

    def lose(self, attempt: int, held: Held, reason: str) -> bool:
        """Give up on an attempt whose process died, unless its heartbeat has moved since ``held``; True if so."""

        def work(session: Session) -> bool:
            row, problem = _locked(session, attempt)
            if row.state != "running" or Held(row.lease, row.heartbeat) != held:
                return False
            row.state, row.reason, row.ended_at = "lost", reason, now()
            _settle(session, problem, row)
            return True

        return self._database.write(work, alone=False)

    def running(self) -> list[UnderWay]:
        """The attempts under way, the oldest first."""
        query = (
            select(FleetAttempt, FleetProblem)
            .join(FleetProblem, FleetProblem.id == FleetAttempt.problem_id)
            .where(FleetAttempt.state == "running")
            .order_by(FleetAttempt.id)
        )
        found = self._database.read(lambda session: session.execute(query).all())
        return self._with_problems(found, fleet_rows.under_way)

    def attempts(self, after: int, besides: Collection[int] = ()) -> list[Attempt]:
        """Attempts in the order of their start: those newer than ``after``, and these."""
        query = select(FleetAttempt, FleetProblem).join(FleetProblem, FleetProblem.id == FleetAttempt.problem_id)
        query = query.where(or_(FleetAttempt.id > after, FleetAttempt.id.in_(besides))).order_by(FleetAttempt.id)
        found = self._database.read(lambda session: session.execute(query).all())
        return self._with_problems(found, fleet_rows.attempt)

    def newest_attempt(self) -> int:
        """The id of the attempt started last; 0 before any."""
        return self._database.read(lambda session: session.scalar(select(func.max(FleetAttempt.id)))) or 0

    def counts(self) -> Counts:
        query = select(FleetProblem.state, func.count()).group_by(FleetProblem.state)
        found = dict(self._database.read(lambda session: session.execute(query).all()))
        unknown = {str(state) for state in found if state not in get_args(ProblemState)}
        for state in unknown - self._unknown:
            LOG.warning("problems in state %s, which this version does not know, are left alone", visible(repr(state)))
        self._unknown |= unknown
        return Counts(**{state: found.get(state, 0) for state in get_args(ProblemState)})

    @property
    def is_empty(self) -> bool:
        """True if the list has no problem in any state, known to this version or not."""
        return not self._database.read(lambda session: session.scalar(select(exists().where(FleetProblem.id > 0))))

    def hosts(self) -> list[HostRecord]:
        """All hosts ever examined, by name, with their findings."""

        def ask(session: Session) -> list[HostRecord]:
            findings: dict[int, list[Finding]] = {}
            for each in session.scalars(select(FleetFinding).order_by(FleetFinding.id)):
                finding = self._intact(each, fleet_rows.finding)
                if finding is not None:
                    findings.setdefault(each.host_id, []).append(finding)
            hosts = session.scalars(select(FleetHost).order_by(FleetHost.name)).all()
            return _present(self._intact(row, fleet_rows.host, findings.get(row.id, ())) for row in hosts)

        return self._database.read(ask)

    def snapshot(self, most: int = 1000) -> Snapshot:
        """The fleet now, with at most so many of the problems that failed."""
        failed_once = exists().where(*_counting("failed"), FleetAttempt.problem_id == FleetProblem.id)
        unlucky = or_(FleetProblem.state == "failed", and_(FleetProblem.state == "wanted", failed_once))
        query = select(FleetProblem).where(unlucky).order_by(FleetProblem.state, FleetProblem.id).limit(most)
        possible = FleetAttempt.seconds.between(0, 1e9)
        pace = select(func.avg(FleetAttempt.seconds)).where(FleetAttempt.state == "done", possible)

        def ask(session: Session) -> tuple[list[Listed], float | None]:
            rows = session.scalars(query).all()
            failed = _failures(session, [row.id for row in rows])
            return self._listed(rows, failed), session.scalar(pace)

        found, seconds = self._database.read(ask)
        return Snapshot(self.counts(), self.running(), found, self.hosts(), seconds)

    def _intact(self, row: Any, read: Callable[..., T], *known: Any) -> T | None:
        """What ``read`` makes of a row and of what is known besides; None if the row is damaged."""
        return intact(self._database.place, row.__tablename__, row.id, lambda: read(row, *known))

    def _listed(self, rows: Iterable[FleetProblem], failed_on: dict[int, set[str]]) -> list[Listed]:
        return _present(self._intact(row, fleet_rows.listed, failed_on.get(row.id, ())) for row in rows)

    def _with_problems(self, found: Iterable[Any], read: Callable[..., T]) -> list[T]:
        """Attempts with their problems."""
        known = ((row, self._intact(of, fleet_rows.listed)) for row, of in found)
        return _present(self._intact(row, read, of) for row, of in known if of is not None)

    def _next(self, session: Session, host: FleetHost, problem: int | None) -> FleetProblem | None:
        """The problem's row, or the next that the host takes, locked; damaged ones are passed by."""
        damaged: list[int] = []
        while True:
            row: FleetProblem | None = session.scalar(_claimable(host, problem, damaged))
            if row is None or self._intact(row, fleet_rows.listed) is not None:
                return row
            damaged.append(row.id)

    def _claim(self, session: Session, attempt: FleetAttempt) -> Claim | None:
        row = session.get_one(FleetProblem, attempt.problem_id)
        query = select(func.count()).select_from(FleetAttempt).where(FleetAttempt.problem_id == row.id)
        number = session.scalar(query) or 1
        listed = self._intact(row, fleet_rows.listed)
        return None if listed is None else Claim(attempt.id, listed, number)

    def _move(self, states: dict[str, str]) -> None:
        new = case(states, value=FleetProblem.state)
        query = update(FleetProblem).where(FleetProblem.state.in_(states)).values(state=new)
        self._database.write(lambda session: session.execute(query))


def _present(found: Iterable[T | None]) -> list[T]:
    return [each for each in found if each is not None]


def _new_row(wanted: Wanted, is_done: bool) -> dict[str, Any]:
    state, reason = ("done", "was in the cache") if is_done else ("wanted", "")
    turn = -wanted.key.world_size
    return {**wanted.as_row(), "turn": turn, "state": state, "reason": reason, "created_at": now()}


def _upsert(session: Session) -> Any:
    """Insert, or renew the options of a problem that is there and not under way."""
    dialect: Any = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    query = dialect.insert(FleetProblem)
    idle = or_(*(FleetProblem.state == state for state in ("wanted", "stopped", "failed")))
    identity = [getattr(FleetProblem, name) for name in (*KEY, *PROVENANCE)]
    return query.on_conflict_do_update(
        index_elements=identity, set_={"options": query.excluded.options}, where=idle
    ).execution_options(synchronize_session=False)


def _claimable(host: FleetHost, problem: int | None, besides: Collection[int]) -> Any:
    """The problem's row, locked; on a server other claims pass it by instead of waiting."""
    there = Kind(**{name: getattr(host, name) for name in KIND})
    query = select(FleetProblem).where(FleetProblem.state == "wanted", _of_kind(there))
    query = query.where(FleetProblem.world_size <= host.gpus, FleetProblem.id.not_in(besides))
    if problem is not None:
        query = query.where(FleetProblem.id == problem)
    ours = (FleetAttempt.problem_id == FleetProblem.id, FleetAttempt.host == host.name)
    query = query.where(~exists().where(*_counting("failed"), *ours))
    query = query.order_by(FleetProblem.turn, FleetProblem.id).limit(1)
    return query.with_for_update(skip_locked=True, of=FleetProblem)


def _settle(session: Session, problem: FleetProblem, attempt: FleetAttempt) -> None:
    """Move a problem on after an attempt's end, and judge the hosts that failed what others pass."""
    session.flush()
    back: ProblemState = "stopped" if problem.state in ("stopping", "stopped") else "wanted"
    problem.reason = f"{attempt.host}: {attempt.reason}" if attempt.reason else ""
    match attempt.state:
        case "done":
            problem.state = "done"
            session.flush()
            _judge(session, problem.id)
        case "failed" if len(_failures(session, [problem.id]).get(problem.id, ())) >= HOSTS_PER_PROBLEM:
            problem.state = "failed"
        case "lost" if _lost(session, problem.id) >= MOST_LOST:
            problem.state, problem.reason = "failed", f"{MOST_LOST} attempts died; the last: {problem.reason}"
        case _:
            problem.state = back


def _judge(session: Session, problem: int) -> None:
    """Set hosts aside that failed this problem, which has now passed elsewhere, as the last of ``IN_A_ROW``."""
    for host in sorted(_failures(session, [problem]).get(problem, ())):
        last = (
            select(FleetAttempt.problem_id, FleetAttempt.state, FleetProblem.state)
            .join(FleetProblem, FleetProblem.id == FleetAttempt.problem_id)
            .where(FleetAttempt.host == host, FleetAttempt.state.in_(("done", "failed")), FleetAttempt.forgiven == 0)
            .order_by(FleetAttempt.id.desc())
            .limit(IN_A_ROW)
        )
        found = session.execute(last).all()
        if len(found) == IN_A_ROW and all(attempt == "failed" and of == "done" for _, attempt, of in found):
            why = f"failed {IN_A_ROW} problems in a row that other hosts pass"
            session.execute(update(FleetHost).where(FleetHost.name == host).values(set_aside=why))
            _reopen(session, host)


def _reopen(session: Session, host: str) -> None:
    """Want the problems again that were set aside on the word of a host that is set aside itself."""
    mine = exists().where(FleetAttempt.problem_id == FleetProblem.id, FleetAttempt.host == host, *_counting("failed"))
    found = session.scalars(select(FleetProblem).where(FleetProblem.state == "failed", mine)).all()
    credible = _failures(session, [row.id for row in found], credible=True)
    for row in found:
        if len(credible.get(row.id, ())) < HOSTS_PER_PROBLEM and _lost(session, row.id) < MOST_LOST:
            row.state = "wanted"


def _failures(session: Session, problems: Sequence[int], *, credible: bool = False) -> dict[int, set[str]]:
    """By problem, the hosts that failed it; with ``credible`` without those that are set aside."""
    query = select(FleetAttempt.problem_id, FleetAttempt.host).distinct()
    query = query.where(*_counting("failed"), FleetAttempt.problem_id.in_(problems))
    if credible:
        aside = select(FleetHost.name).where(FleetHost.set_aside != "")
        query = query.where(FleetAttempt.host.not_in(aside))
    found: dict[int, set[str]] = {}
    for problem, host in session.execute(query):
        found.setdefault(problem, set()).add(host)
    return found


def _lost(session: Session, problem: int) -> int:
    query = select(func.count()).select_from(FleetAttempt).where(*_counting("lost"), FleetAttempt.problem_id == problem)
    return session.scalar(query) or 0


def _counting(state: str) -> tuple[ColumnElement[bool], ...]:
    return FleetAttempt.state == state, FleetAttempt.forgiven == 0


def _locked(session: Session, attempt: int) -> tuple[FleetAttempt, FleetProblem]:
    """An attempt and its problem; nobody else changes the problem until the transaction ends."""
    problem = select(FleetAttempt.problem_id).where(FleetAttempt.id == attempt).scalar_subquery()
    found = session.scalars(select(FleetProblem).where(FleetProblem.id == problem).with_for_update()).one()
    return session.scalars(select(FleetAttempt).where(FleetAttempt.id == attempt)).one(), found


def _of_kind(kind: Kind) -> ColumnElement[bool]:
    return and_(*(getattr(FleetProblem, name) == value for name, value in dataclasses.asdict(kind).items()))


def _count(session: Session) -> int:
    return session.scalar(select(func.count()).select_from(FleetProblem)) or 0
