"""Converts between rows and records. Reading a damaged row raises one of ``autotune.db.engines.failures.DAMAGE``."""

from __future__ import annotations

import dataclasses
import json
import math
from datetime import UTC, datetime
from typing import Any, get_args

from sqlalchemy import Row

from autotune import schema
from autotune.config import Config
from autotune.db.lease import Held
from autotune.db.models import Study, Trial
from autotune.db.records import (
    KEY,
    PROVENANCE,
    CacheKey,
    Columns,
    Entry,
    Provenance,
    Standing,
    State,
    StudyRecord,
    TrialRecord,
    Winner,
)
from autotune.outcome import Evaluation, Latency, Outcome

LATENCY = ("median", "low", "high", "skew", "iterations", "host", "isolated", "by_rank")
"""Columns of a trial's latency."""

WINNER = tuple(each.name for each in dataclasses.fields(Winner))


def now() -> str:
    """The current time as text for the tables; sorts in order of time."""
    return as_text(datetime.now(UTC))


def as_text(moment: datetime) -> str:
    """A time as text for the tables, in UTC."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def trial_row(study_id: int, record: TrialRecord, record_key: str) -> Trial:
    """The row of a new trial; raises ValueError for a latency that is not a number, which is a bug."""
    evaluation, latency = record.evaluation, record.evaluation.latency
    row = Trial(
        study_id=study_id,
        number=record.number,
        source=record.source,
        config=record.config.to_json(),
        outcome=evaluation.outcome.value,
        reason=encodable(evaluation.reason),
        error=None if evaluation.error is None else repr(float(evaluation.error)),
        predicted=None if record.predicted is None else _number(record.predicted),
        seconds=json.dumps(evaluation.seconds),
        created_at=now(),
        record_key=record_key,
    )
    if latency is not None:
        values = schema.write(latency)
        for name in LATENCY:
            setattr(row, name, json.dumps(values[name]) if name == "by_rank" else values[name])
    return row


def trial_record(row: Row[Any]) -> TrialRecord:
    outcome = Outcome(row.outcome)
    latency = None
    if outcome is Outcome.MEASURED:
        values = {name: getattr(row, name) for name in LATENCY} | {"by_rank": json.loads(row.by_rank or "")}
        latency = schema.read(Latency, values, newer=True)
    evaluation = Evaluation(
        outcome=outcome,
        reason=words(row.reason),
        latency=latency,
        error=None if row.error is None else float(row.error),
        seconds={name: float(value) for name, value in json_object(row.seconds).items()},
    )
    return TrialRecord(
        config=Config.from_json(words(row.config)),
        evaluation=evaluation,
        source=words(row.source),
        number=None if row.number is None else whole_number(row.number),
        predicted=None if row.predicted is None else _number(float(row.predicted)),
        id=row.id,
        created_at=_time(row.created_at),
    )


def study_row(key: CacheKey, provenance: Provenance, *, seed: int, space_size: int, origin: str = "") -> Study:
    fields = dataclasses.asdict(key) | dataclasses.asdict(provenance)
    return Study(
        **fields, seed=seed, space_size=space_size, state="running", created_at=now(), origin=encodable(origin) or None
    )


def write_winner(row: Study, winner: Winner) -> None:
    """Each field of the winner in a column; NULL for nothing."""
    for name, value in schema.write(winner).items():
        text = winner.config.to_json() if name == "config" else json.dumps(value)
        absent = value is None or (name in ("routings", "beside", "verified") and not value)
        setattr(row, f"winner_{name}", None if absent else text)
    row.finished_at, row.imported_at = now(), None


def imported_row(entry: Entry) -> Study:
    row = study_row(entry.key, entry.provenance, seed=entry.seed, space_size=entry.space_size, origin=entry.origin)
    write_winner(row, entry.winner)
    row.state = "finished"
    row.finished_at = as_text(entry.finished_at)
    row.imported_at, row.imported_trials = row.created_at, entry.trials
    return row


def study_record(row: Study | Row[Any]) -> StudyRecord:
    return StudyRecord(
        **_shared(row),
        id=row.id,
        state=row.state,
        created_at=_time(row.created_at),
        winner=None if row.finished_at is None else _winner(row),
    )


def standing(row: Row[Any]) -> tuple[Columns, Standing]:
    """A study's columns of key and provenance, and where it stands."""
    held = None if row.lease is None else Held(words(row.lease), whole_number(row.heartbeat or 0))
    columns = tuple(getattr(row, name) for name in (*KEY, *PROVENANCE))
    verified = row.winner_verified is not None
    return columns, Standing(row.id, row.state == "finished", verified, held, words(row.failure or ""))


def entry(row: Row[Any]) -> Entry:
    """The cache entry from a finished study's columns and ``trials``, its number of trials."""
    return Entry(
        **_shared(row),
        winner=_winner(row),
        study_id=row.id,
        finished_at=_time(row.finished_at),
        trials=row.trials + whole_number(row.imported_trials or 0),
        imported_at=None if row.imported_at is None else _time(row.imported_at),
    )


def _shared(row: Study | Row[Any]) -> dict[str, Any]:
    """Values that a study and its entry share. Raises ValueError for values that are damaged in either, so that both
    readers agree.
    """
    if row.state not in get_args(State):
        raise ValueError(f"state {row.state!r}")
    if row.finished_at is None and row.state == "finished":
        raise ValueError("finished, and without the moment")
    for moment in (row.finished_at, row.imported_at):
        if moment is not None:
            _time(moment)
    whole_number(row.imported_trials or 0)
    return {
        "key": key_of(row), "provenance": provenance_of(row), "seed": whole_number(row.seed),
        "space_size": whole_number(row.space_size), "origin": words(row.origin or ""),
    }  # fmt: skip


def key_of(row: Study | Row[Any]) -> CacheKey:
    texts = {name: words(getattr(row, name)) for name in KEY if name != "world_size"}
    return CacheKey(**texts, world_size=whole_number(row.world_size))


def provenance_of(row: Study | Row[Any]) -> Provenance:
    return Provenance(**{name: words(getattr(row, name)) for name in PROVENANCE})


def _winner(row: Study | Row[Any]) -> Winner:
    columns = {name: getattr(row, f"winner_{name}") for name in WINNER}
    values = {name: json.loads(words(text)) for name, text in columns.items() if text is not None}
    return schema.read(Winner, values, newer=True)


def _number(value: float) -> float:
    """SQLite would store a NaN as NULL."""
    if math.isnan(value):
        raise ValueError(f"{value} microseconds is not a number")
    return value


def json_object(text: str | None) -> dict[str, Any]:
    values = json.loads(words(text))
    if not isinstance(values, dict):
        raise ValueError(f"a JSON {type(values).__name__} where an object is needed")
    return values


def _time(text: str | None) -> datetime:
    return datetime.fromisoformat(words(text)).astimezone(UTC)


def words(value: object) -> str:
    """The text; raises ValueError for another type, and where it is not UTF-8 in the table."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} where text is needed")
    if not value.isascii():
        value.encode()  # raises where it is not UTF-8 in the table
    return value


def whole_number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} where an integer is needed")
    return value


def encodable(text: str) -> str:
    """Compilers' messages may hold bytes that are not text; they stay legible."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")
