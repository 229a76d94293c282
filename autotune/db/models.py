"""The tables: studies, their trials, and what else was measured of them.

Times are ISO 8601 text in UTC, JSON is text: a damaged value is then reported with its row.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Double, ForeignKey, Index, MetaData, Text, text
from sqlalchemy.orm import DeclarativeBase, Mapped, configure_mappers, mapped_column

from autotune.db.records import KEY, PROVENANCE, State

LIVE = text("state <> 'superseded'")

NAMES = {"ix": "ix_%(table_name)s_%(column_0_name)s", "pk": "pk_%(table_name)s",
         "fk": "fk_%(table_name)s_%(column_0_name)s"}  # fmt: skip


class Base(DeclarativeBase):
    """Base of the tables; constraints have names, which messages show."""

    metadata = MetaData(naming_convention=NAMES)


class Study(Base):
    """One tuning of one key with one provenance; at most one is not superseded."""

    __tablename__ = "tuning_studies"
    __table_args__ = (
        Index("ix_tuning_studies_record_key", "record_key", unique=True),
        Index("ix_tuning_studies_live", *KEY, *PROVENANCE, unique=True, sqlite_where=LIVE, postgresql_where=LIVE),
    )

    id: Mapped[int] = mapped_column(primary_key=True)

    workload: Mapped[str] = mapped_column(Text)
    problem: Mapped[str] = mapped_column(Text)
    world_size: Mapped[int]
    device: Mapped[str] = mapped_column(Text)
    arch: Mapped[str] = mapped_column(Text)
    interconnect: Mapped[str] = mapped_column(Text)
    regime: Mapped[str] = mapped_column(Text)

    source_hash: Mapped[str] = mapped_column(Text)
    space: Mapped[str] = mapped_column(Text)
    triton: Mapped[str] = mapped_column(Text)
    iris: Mapped[str] = mapped_column(Text)
    torch: Mapped[str] = mapped_column(Text)
    driver: Mapped[str] = mapped_column(Text)

    seed: Mapped[int] = mapped_column(BigInteger)
    space_size: Mapped[int] = mapped_column(BigInteger)
    state: Mapped[State] = mapped_column(Text)
    created_at: Mapped[str] = mapped_column(Text)

    finished_at: Mapped[str | None] = mapped_column(Text)
    winner_config: Mapped[str | None] = mapped_column(Text)
    winner_latency: Mapped[str | None] = mapped_column(Text)
    winner_baselines: Mapped[str | None] = mapped_column(Text)
    winner_limits: Mapped[str | None] = mapped_column(Text)
    winner_roofline: Mapped[str | None] = mapped_column(Text)
    winner_routings: Mapped[str | None] = mapped_column(Text)
    """Latencies under other routings; NULL if none was measured."""
    winner_beside: Mapped[str | None] = mapped_column(Text)
    winner_verified: Mapped[str | None] = mapped_column(Text)

    imported_at: Mapped[str | None] = mapped_column(Text)
    imported_trials: Mapped[int | None]

    finished_order: Mapped[int | None] = mapped_column(BigInteger)
    """Counts every finish and import in this database; hosts' clocks differ and may be set back."""
    lease: Mapped[str | None] = mapped_column(Text)
    """The process that tunes it, as JSON; see ``autotune.db.lease``."""
    heartbeat: Mapped[int | None] = mapped_column(BigInteger)
    """Counted up by the tuning process while it lives."""
    failure: Mapped[str | None] = mapped_column(Text)
    """Host and reason of a fleet's last attempt that found no winner."""
    record_key: Mapped[str | None] = mapped_column(Text)
    """Made by the writer of an imported study: a write whose acknowledgement was lost is not repeated."""
    origin: Mapped[str | None] = mapped_column(Text)
    """``FILE:NAME`` of a kernel or workload that is not built in; nothing is ever loaded by it."""


class Trial(Base):
    """One evaluation of one config; rows are only ever added."""

    __tablename__ = "tuning_trials"
    __table_args__ = (Index("ix_tuning_trials_record_key", "record_key", unique=True),)

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("tuning_studies.id"), index=True)
    number: Mapped[int | None]
    source: Mapped[str] = mapped_column(Text)
    config: Mapped[str] = mapped_column(Text)
    outcome: Mapped[str] = mapped_column(Text)
    reason: Mapped[str] = mapped_column(Text)
    median: Mapped[float | None] = mapped_column(Double)
    low: Mapped[float | None] = mapped_column(Double)
    high: Mapped[float | None] = mapped_column(Double)
    skew: Mapped[float | None] = mapped_column(Double)
    iterations: Mapped[int | None]
    by_rank: Mapped[str | None] = mapped_column(Text)
    host: Mapped[float | None] = mapped_column(Double)
    isolated: Mapped[float | None] = mapped_column(Double)
    error: Mapped[str | None] = mapped_column(Text)
    """A number as text: a wrong result's error may be NaN, which SQLite would store as NULL."""
    predicted: Mapped[float | None] = mapped_column(Double)
    seconds: Mapped[str] = mapped_column(Text)
    created_at: Mapped[str] = mapped_column(Text)
    record_key: Mapped[str] = mapped_column(Text)
    """Identifies the record when a write is retried."""


class Attachment(Base):
    """A measurement of a study's problem beside its trials, which no look-up reads; rows are only ever added."""

    __tablename__ = "tuning_attachments"
    __table_args__ = (Index("ix_tuning_attachments_record_key", "record_key", unique=True),)

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("tuning_studies.id"), index=True)
    kind: Mapped[str] = mapped_column(Text)
    measured: Mapped[str] = mapped_column(Text)
    """JSON: of ``taxes`` see ``autotune.taxes.result``, of a ``timeline`` ``autotune.timeline``."""
    created_at: Mapped[str] = mapped_column(Text)
    record_key: Mapped[str] = mapped_column(Text)
    """Identifies the record when a write is retried."""


configure_mappers()  # now, not in the first look-up of a program that is at work
