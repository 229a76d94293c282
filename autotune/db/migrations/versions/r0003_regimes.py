"""Revision 0003: the regime that a study was tuned for; a latency's host cost; a winner's roofline."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

IDENTITY = (
    "workload", "problem", "world_size", "device", "arch", "interconnect", "regime",
    "source_hash", "space", "triton", "iris", "torch", "driver",
)  # fmt: skip


def upgrade() -> None:
    """Add columns. What was tuned before was ranked by the device's time alone: as in a graph."""
    live = sa.text("state <> 'superseded'")
    op.add_column("studies", sa.Column("regime", sa.Text(), nullable=False, server_default="graph"))
    op.add_column("studies", sa.Column("winner_roofline", sa.Text()))
    op.drop_index("ix_studies_live", table_name="studies")
    op.create_index("ix_studies_live", "studies", list(IDENTITY), unique=True, sqlite_where=live, postgresql_where=live)
    op.add_column("trials", sa.Column("host", sa.Double()))
    op.add_column("trials", sa.Column("isolated", sa.Double()))


def downgrade() -> None:
    """Refused: nothing measured is ever deleted."""
    raise NotImplementedError("what the host costs, and what a study was tuned for, would be lost")
