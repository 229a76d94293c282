"""Revision 0009: a winner's latencies under other routings than the one that it is tuned for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column that what is there leaves empty."""
    op.add_column("tuning_studies", sa.Column("winner_routings", sa.Text()))


def downgrade() -> None:
    """Refused: nothing measured is ever deleted."""
    raise NotImplementedError("latencies under other routings would be lost")
