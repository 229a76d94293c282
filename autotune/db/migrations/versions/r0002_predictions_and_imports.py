"""Revision 0002: a trial's predicted latency; where an imported study comes from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add columns that what is there leaves empty."""
    op.add_column("trials", sa.Column("predicted", sa.Double()))
    op.add_column("studies", sa.Column("imported_at", sa.Text()))
    op.add_column("studies", sa.Column("imported_trials", sa.Integer()))


def downgrade() -> None:
    """Refused: nothing measured is ever deleted."""
    raise NotImplementedError("predictions and the origin of imported studies would be lost")
