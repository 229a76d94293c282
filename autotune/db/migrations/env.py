"""Alembic's entry: runs the revisions on the connection that ``upgrade`` was given."""

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
