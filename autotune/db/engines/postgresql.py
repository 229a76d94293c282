"""PostgreSQL's manners: one driver, writers one at a time as on SQLite, and an end to every wait."""

from __future__ import annotations

from sqlalchemy import URL, Connection, Engine, create_engine, event

from autotune.db.engines.failures import BUSY_SECONDS
from autotune.db.engines.writing import WRITING
from autotune.errors import StoreError

EXTRA = "pip install 'iris-autotune[postgresql]'"

WRITERS = int.from_bytes(b"irat")
"""Key of the advisory lock that our writers and migrations hold until the end of their transaction."""

CONNECT_SECONDS = 10


def postgresql_engine(url: URL) -> Engine:
    """An engine for a server; a connection that the server has dropped meanwhile is made again."""
    if "connect_timeout" not in url.query:
        url = url.update_query_dict({"connect_timeout": str(CONNECT_SECONDS)})
    try:
        engine = create_engine(url, pool_pre_ping=True)
    except ImportError as error:
        raise StoreError(f"database {url} needs the driver psycopg ({error}); install it: {EXTRA}") from error
    event.listen(engine, "begin", _begin)
    return engine


def _begin(connection: Connection) -> None:
    """Two writers that look first and then add would both add: they take turns, as they do on SQLite."""
    if connection.get_execution_options().get(WRITING, False):
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{BUSY_SECONDS}s'")
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({WRITERS})")
