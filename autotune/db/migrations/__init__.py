"""The schema's revisions, oldest first, and the migration to the newest."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, text

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009")
"""One file each in ``versions/``; listed here too, so that a database at the newest opens without alembic."""

HEAD = REVISIONS[-1]

TAXED = "0008"
"""From here on there is a table of taxes."""

RENAMED = "0005"
"""From here on the tables have ``tuning_`` before their names."""

VERSION_TABLE = "iris_autotune_version"


def current(connection: Connection) -> str | None:
    """The revision of the database's schema; None without our tables."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    revision: str | None = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return revision


def upgrade(connection: Connection, revision: str = HEAD) -> None:
    """Run the missing revisions up to ``revision``, in the connection's transaction.

    A database without our tables gets the newest from the models: the older names may belong to another program there.
    """
    from alembic import command
    from alembic.config import Config

    from autotune.db.models import Base
    from autotune.db.views import make_views

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    if revision == HEAD and current(connection) is None:
        Base.metadata.create_all(connection, checkfirst=False)
        make_views(connection)
        command.stamp(config, revision)
    else:
        command.upgrade(config, revision)
