"""Alembic's entry point: runs the revisions on the connection given to ``upgrade``."""

from __future__ import annotations

from alembic import context

from autotune.db.migrations import VERSION_TABLE
from autotune.db.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
)
with context.begin_transaction():
    context.run_migrations()
