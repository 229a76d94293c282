"""Revision 0006: the file that a kernel or workload came from; the view ``tuning_winners``."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from autotune.db.views import make_views

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column that earlier studies leave empty, and the view."""
    op.add_column("tuning_studies", sa.Column("origin", sa.Text()))
    make_views(op.get_bind())


def downgrade() -> None:
    """Refused: nothing recorded is ever deleted."""
    raise NotImplementedError("the origins would be lost")
