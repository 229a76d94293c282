"""A connected database: transactions that read or write, retried while a server restarts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from autotune.db.engines.failures import explained, is_lost, translated
from autotune.forks import FORKS_WAIT

LOG = logging.getLogger("autotune")

WRITING = "autotune_writing"
"""Execution option of a connection that will write: SQLite begins immediately, PostgreSQL takes the writers' lock."""

PATIENCE = 60.0
"""Seconds of retries after a server went away."""

PAUSES = (0.2, 5.0)
"""Seconds between two retries, first and longest; each pause is twice the one before."""

T = TypeVar("T")


class Database:
    """An engine on a database that has our tables."""

    def __init__(self, engine: Engine, place: str) -> None:
        """``place``: the database's name in messages."""
        self.engine, self.place = engine, place
        self._writer = engine.execution_options(**{WRITING: True})

    def close(self) -> None:
        self.engine.dispose()

    def read(self, work: Callable[[Session], T]) -> T:
        """Run ``work`` in one transaction and return its result. ``work`` may be called several times."""

        def attempt() -> T:
            with FORKS_WAIT, Session(self.engine, expire_on_commit=False) as session:
                return work(session)

        return self._patiently(attempt)

    def write(self, work: Callable[[Session], T], *, patient: bool = True) -> T:
        """Run ``work`` in one transaction, on disk on return; writers take turns. A retried ``work`` may find its first
        call done.
        """

        def attempt() -> T:
            # A session that took the connection itself would lose it where Ctrl-C comes between.
            with (
                FORKS_WAIT,
                self._writer.connect() as held,
                Session(held, expire_on_commit=False) as session,
                session.begin(),
            ):
                return work(session)

        if patient:
            return self._patiently(attempt)
        with translated(self.place):
            return attempt()

    def _patiently(self, attempt: Callable[[], T]) -> T:
        """Retry for ``PATIENCE`` seconds after the server went away; raises StoreError."""
        deadline, pause = 0.0, PAUSES[0]
        with translated(self.place):
            while True:
                try:
                    return attempt()
                except DBAPIError as error:
                    now = time.monotonic()
                    if not is_lost(error) or (deadline and now + pause > deadline):
                        raise
                    if not deadline:
                        deadline = now + PATIENCE
                        LOG.warning("database %s %s; retrying for %.0f s", self.place, explained(error), PATIENCE)
                time.sleep(pause)
                pause = min(2 * pause, PAUSES[1])
