"""Revision 0008: a table of the taxes that were measured of a study's problem."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "tuning_taxes",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("measured", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.Column("record_key", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["study_id"], ["tuning_studies.id"], name="fk_tuning_taxes_study_id"),
        sa.PrimaryKeyConstraint("id", name="pk_tuning_taxes"),
    )
    op.create_index("ix_tuning_taxes_study_id", "tuning_taxes", ["study_id"])
    op.create_index("ix_tuning_taxes_record_key", "tuning_taxes", ["record_key"], unique=True)


def downgrade() -> None:
    """Refused: nothing measured is ever deleted."""
    raise NotImplementedError("the measured taxes would be lost")
