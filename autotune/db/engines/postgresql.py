"""PostgreSQL: one driver, one writer at a time as on SQLite, a limit on every wait."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event

from autotune.db.engines.database import WRITING
from autotune.db.engines.failures import BUSY_SECONDS
from autotune.errors import StoreError

EXTRA = "pip install 'iris-autotune[postgresql]'"

WRITERS = int.from_bytes(b"irat")
"""Key of the advisory lock that writers hold until their transaction ends."""

CONNECT_SECONDS = 10

STATEMENT_SECONDS = BUSY_SECONDS + 15.0
"""Limit on a statement; the server cancels statements earlier by itself."""

LINK: dict[str, str] = {
    "connect_timeout": str(CONNECT_SECONDS),
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""libpq options, overridden by the URL. A vanished host is noticed after half a minute."""


def postgresql_engine(url: URL) -> Engine:
    """An engine for a server; dropped connections are made anew."""
    url = url.update_query_dict({name: value for name, value in LINK.items() if name not in url.query})
    try:
        engine = create_engine(url, pool_pre_ping=True)
    except ImportError as error:
        place = url.set(query={})  # which may hold a password
        raise StoreError(f"database {place} needs the driver psycopg ({error}); install it: {EXTRA}") from error
    event.listen(engine, "do_connect", _connect)
    event.listen(engine, "begin", _begin)
    return engine


def _connect(dialect: Any, record: Any, arguments: list[Any], options: dict[str, Any]) -> Any:
    """A connection whose waits end even if the server's processes hang."""
    import psycopg

    class Ending(psycopg.Connection[Any]):
        def wait(self, generator: Generator[Any, Any, Any], *rest: Any, **named: Any) -> Any:  # type: ignore[override]
            """As in psycopg, for ``STATEMENT_SECONDS`` at most."""
            return super().wait(_ending(generator, self), *rest, **named)

    return Ending.connect(*arguments, **options)


def _ending(generator: Generator[Any, Any, Any], connection: Any) -> Generator[Any, Any, Any]:
    """Limit a wait: OperationalError after the time. psycopg resumes it ten times per second."""
    import psycopg

    deadline = time.monotonic() + STATEMENT_SECONDS
    try:
        wanted = next(generator)
        while True:
            ready = yield wanted
            if time.monotonic() > deadline:
                connection.pgconn.finish()  # it is in the midst of an answer, and of no further use
                raise psycopg.OperationalError(f"the server has not answered for {STATEMENT_SECONDS:.0f} s")
            wanted = generator.send(ready)
    except StopIteration as end:
        return end.value


def _begin(connection: Connection) -> None:
    """Writers take turns, as on SQLite: two that look first and then add would both add."""
    begin = [f"SET LOCAL statement_timeout = '{STATEMENT_SECONDS:.0f}s'"]
    if connection.get_execution_options().get(WRITING, False):
        begin += [f"SET LOCAL lock_timeout = '{BUSY_SECONDS}s'", f"SELECT pg_advisory_xact_lock({WRITERS})"]
    connection.exec_driver_sql("; ".join(begin))  # one way to the server and back
