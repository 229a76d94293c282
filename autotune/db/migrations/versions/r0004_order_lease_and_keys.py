"""Revision 0004: the order in which studies finished; who is tuning one; keys of records, made by their writers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add columns that what is there leaves empty, but for the order, which so far only the clock tells."""
    op.add_column("studies", sa.Column("finished_order", sa.BigInteger()))
    op.add_column("studies", sa.Column("lease", sa.Text()))
    op.add_column("studies", sa.Column("heartbeat", sa.BigInteger()))
    for table in ("studies", "trials"):
        op.add_column(table, sa.Column("record_key", sa.Text()))
        op.create_index(f"ix_{table}_record_key", table, ["record_key"], unique=True)
    connection = op.get_bind()
    came = "SELECT id FROM studies WHERE finished_at IS NOT NULL ORDER BY coalesce(imported_at, finished_at), id"
    order = [{"place": place, "id": id} for place, id in enumerate(connection.scalars(sa.text(came)), 1)]
    if order:
        connection.execute(sa.text("UPDATE studies SET finished_order = :place WHERE id = :id"), order)


def downgrade() -> None:
    """Refused: nothing measured is ever deleted."""
    raise NotImplementedError("the order in which studies finished would be lost")
